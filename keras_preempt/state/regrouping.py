"""Makes one worker's part of a checkpoint from the parts of other workers, and says what is not exact about it.

Variables follow the rules of `state.regroup`. The rest of a worker's own state (Python's and NumPy's
random state, callbacks, logs) is taken from the worker with the same number, modulo the old number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.checkpoint.reader import Loaded
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues, by_replica
from keras_preempt.process.words import counted, numbered
from keras_preempt.state import regroup
from keras_preempt.state.handover import find_waiting, not_regrouped
from keras_preempt.state.model import ModelState
from keras_preempt.state.samples import Continuation, convert


@dataclass(frozen=True)
class Regrouped:
    """A worker's part, made from those of others.

    Attributes:
        loaded: The part, with the position to continue from.
        summary: What is exact and what is not, in one line.
        treatment: How many variables each rule was used for, by the rule in words.
    """

    loaded: Loaded
    summary: str
    treatment: dict[str, int]


def regrouped_for(
    loaded: Loaded, model_state: ModelState, feed: InputFeed, member: int, setup: Setup
) -> tuple[Loaded, Regrouped | None]:
    """Returns what was loaded; if other workers have saved it, made into the part of this one, and how."""
    if loaded.saved_on is None:
        return loaded, None
    regrouped = regroup_checkpoint(
        loaded,
        model_state,
        member,
        setup,
        steps_per_execution=feed.steps_per_execution,
        num_batches=feed.position(pending=False)["num_batches"],
    )
    values = regrouped.loaded.values
    if later := find_waiting(values.whole, values.local, model_state.named)[1]:
        raise not_regrouped(later)
    return regrouped.loaded, regrouped


def regroup_checkpoint(
    found: Loaded,
    model_state: ModelState,
    member: int,
    setup: Setup,
    *,
    steps_per_execution: int,
    num_batches: int | None,
) -> Regrouped:
    """Makes the part of a worker that trains on `setup`; an epoch of its input has `num_batches`, if that is known."""
    old = found.saved_on
    assert old is not None
    source = next((own for own in found.workers if own.member == member), None)
    source = source or found.workers[member % len(found.workers)]
    rules = model_state.rules()
    replicas = [by_replica(own.local) for own in found.workers]
    whole: dict[str, Array] = {}
    local: dict[str, Array] = {}
    treatment: Counter[str] = Counter()
    for name, rule in rules.items():
        if name in found.values.boxes:  # One value, of which this worker has read what it holds.
            treatment[regroup.KEPT] += 1
            continue
        values = [value for own in replicas for value in own.get(name, ())]
        if name in found.values.whole:
            values = [found.values.whole[name]]
        if not values:
            continue
        if name in model_state.mirrored:
            (whole[name],), how = regroup.regroup(values, 1, rule)
        else:
            here = model_state.replicas_here(name)
            parts, how = regroup.regroup(values, setup.workers * here, rule)
            local.update({f"{name}@{index}": parts[member * here + index] for index in range(here)})
        treatment[how] += 1
    exact = not local and not any(name in rules for own in replicas for name in own)
    others = {key: value for key, value in source.local.items() if key.rpartition("@")[0] not in rules}
    # A snapshot is of another worker's part of the data.
    captured = {name: value for name, value in source.state["input"].items() if name != "snapshot"}
    continuation = convert(
        found.manifest.position,
        captured["position"],
        old,
        setup,
        steps_per_execution=steps_per_execution,
        num_batches=num_batches,
    )
    if setup.global_batch is None or setup.global_batch != old.global_batch:
        captured = {name: value for name, value in captured.items() if name != "grain"}  # It counts batches.
    state = {**source.state, "input": {**captured, "position": continuation.place, "way": "replay"}}
    loaded = Loaded(
        replace(found.manifest, position=continuation.where),
        WorkerValues({**found.values.whole, **whole}, {**others, **local}, found.values.boxes),
        state,
    )
    summary = _summary(old, setup, found.manifest.missing, continuation, exact=exact)
    return Regrouped(loaded, summary, dict(treatment))


def _summary(
    old: Setup, setup: Setup, missing: Sequence[int], continuation: Continuation, *, exact: bool
) -> str:
    """Says what is exact; `exact` is whether every variable has, and had, one value for all replicas."""
    if old.layout != setup.layout and exact and not missing:
        kept = "every variable has its exact value, divided among the devices in another way"
    elif exact and not missing:
        kept = "every variable has its exact value"
    elif old.replicas == setup.replicas and not missing:
        kept = "weights and what each replica holds exact"
    elif old.replicas == 1:
        kept = (
            "weights exact; metrics keep their totals; BatchNormalization statistics copied to each replica"
        )
    else:
        kept = "weights exact; metrics keep their totals; BatchNormalization statistics averaged"
    where: dict[str, Any] = continuation.where
    sample = f"batch {where['batch']}" if continuation.sample is None else f"sample {continuation.sample}"
    said = [kept, f"input at {sample} of epoch {where['epoch']}"]
    if continuation.again:
        said.append(f"used again before it: {counted(continuation.again, 'sample')}")
    if missing:
        said.append(
            f"{numbered('worker', missing)} had not written their own part, so that their share of metrics "
            "and statistics is lost"
        )
    said += continuation.warnings
    return f"Restored on {setup} a checkpoint of {old}: {'; '.join(said)}; NOT bit-identical from here."
