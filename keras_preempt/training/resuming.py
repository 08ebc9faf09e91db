"""The checkpoint that a fit resumes from: taken over before the first step, and again where Keras resets it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.agreement.messages import Position
from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.other_workers import LoadedFromOthers, Setup
from keras_preempt.checkpoint.reader import Loaded
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.report.events import EventLog
from keras_preempt.state import inputs, randomness, step_logs
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.handover import find_waiting, not_regrouped
from keras_preempt.state.model import ModelState
from keras_preempt.state.shuffles import Shuffles
from keras_preempt.state.validations import Validations
from keras_preempt.training.regrouping import Regrouped, regroup_checkpoint
from keras_preempt.training.save.agreed import Start

logger = logging.getLogger("keras_preempt")


@dataclass(frozen=True)
class ResumedFrom:
    """Where a training has resumed from: the same on all workers.

    Attributes:
        step: Training steps that were done; for `PreemptionCheckpointHandler`, calls of `run`.
        epoch: The epoch in which training continues, from 0; of a fit that had ended, the number of its epochs. None
            for `PreemptionCheckpointHandler`, which knows no epochs.
        why: Why the checkpoint was saved, and so why training had stopped there. "preempted": after a notice.
            "deadline": at the end of a grace period. "periodic": by `save_every`; what was trained since then is lost,
            because that start was killed or has failed. "requested": by ``keras-preempt save``, likewise.
            "interrupted": by Ctrl-C. "finished": training had ended, and nothing is trained now. None for
            `PreemptionCheckpointHandler`, whose checkpoints do not say.
        checkpoint: The folder of the checkpoint below the directory, such as "step-00000070/00001-0000"; for
            `PreemptionCheckpointHandler` its name, such as "ckpt-3".
    """

    step: int
    epoch: int | None
    why: str | None
    checkpoint: str


def resumed_from(start: Start) -> ResumedFrom | None:
    """Says where the workers have agreed to resume from; None for a new run."""
    if start.restored is None:
        return None
    manifest = start.restored.manifest
    return ResumedFrom(manifest.step, int(manifest.position["epoch"]), manifest.kind, start.name)


@dataclass(frozen=True)
class FitState:
    """What the state of a fit is kept in.

    Attributes:
        variables: The variables of the model.
        callbacks: The states of the other callbacks.
        fit: What Keras is doing.
        shuffles: Those of its training and validation data.
        validations: The validations of the fit.
        setup: What it trains on.
        member: The number of this worker.
    """

    variables: ModelState
    callbacks: CallbackStates
    fit: RunningFit
    shuffles: Shuffles
    validations: Validations
    setup: Setup
    member: int


@dataclass
class Resumed:
    """What has still to be handed over of a restored checkpoint.

    Attributes:
        position: Where it stands.
        state: This worker's JSON state.
        logs: The logs of the last execution before it.
        arrays: What the callbacks and the random state have of arrays.
        values: The small ones of the variables; all if a callback could change them before the first step.
        drawing: Whether the checkpoint is from within an epoch of the training data.
    """

    position: Position
    state: dict[str, Any]
    logs: Any
    arrays: dict[str, Array]
    values: WorkerValues
    drawing: bool
    _told: bool = field(default=False, init=False)

    def hand_over(self, to: FitState, *, metrics: bool = True) -> None:
        """Restores what Keras or other callbacks may have changed since.

        Args:
            to: What is restored.
            metrics: Whether metrics are among that: not where Keras has just reset them for an epoch.
        """
        left_out = () if metrics else ("metrics/",)
        to.variables.restore(self.values.select(lambda name, _: not name.startswith(left_out)))
        for difference in to.callbacks.restore(self.state["callbacks"], self.arrays):
            if not self._told:
                logger.warning("The callbacks differ: %s. It begins without its saved state.", difference)
        self._told = True
        to.callbacks.attributes.restore(
            self.state.get("attributes", {}), self.arrays
        )  # Absent before release 0.3.
        to.callbacks.trained.restore(self.state.get("trained"))
        to.shuffles.go_to(self.state.get("shuffles"), drawing=self.drawing)
        randomness.restore(self.state["random"], self.arrays)


def take_over(
    to: FitState, start: Start, events: EventLog, all_go: Callable[[str], bool], before: str | None = ""
) -> tuple[Resumed, float]:
    """Takes over the checkpoint that the workers agreed on, and says so.

    What Keras and the other callbacks will reset or touch before the first step has to be handed over again.

    Args:
        to: What is restored.
        start: What the workers agreed on; there is a checkpoint.
        events: Where to write what was restored.
        all_go: See `inputs.restore`.
        before: What to say in front of the line that tells from where; None to leave that line out, as nothing will
            be trained.

    Returns:
        What has still to be handed over, and how many seconds it took.

    Raises:
        CorruptCheckpoint: All checksums are right, but it is not what such a fit has saved.
    """
    assert start.restored is not None
    began = time.time()
    loaded, regrouped = start.restored, None
    try:
        if isinstance(loaded, LoadedFromOthers):
            regrouped = _regroup(to, loaded)
            loaded = regrouped.loaded
        resumed, how, input_seconds = _restore(to, loaded, all_go)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptCheckpoint(start.name, f"a state of another structure ({error!r})") from error
    seconds = time.time() - began
    events.emit(
        "restore",
        checkpoint=start.name,
        seconds=seconds,
        input_seconds=input_seconds,
        skipped=list(start.skipped),
        substituted_from=loaded.substituted_from,
        input=how,
        saved_by=loaded.manifest.members,
        exchanged=start.exchanged,
        regrouped=None if regrouped is None else regrouped.summary,
    )
    logger.log(
        logging.DEBUG if before is None else logging.INFO,
        "%sContinuing from %s: %s (the newest that verified%s). Input: %s.",
        before or "",
        start.name,
        resumed.position,
        f"; not used: {'; '.join(start.skipped)}" if start.skipped else "",
        how,
    )
    if regrouped is not None:
        logger.warning("%s", regrouped.summary)
        treated = ", ".join(f"{count} {how}" for how, count in sorted(regrouped.treatment.items()))
        logger.info("Variables restored on other replicas: %s.", treated)
    if loaded.substituted_from is not None:
        logger.warning(
            "NOT exact: worker %d was killed before it had written its own part of %s. Its metrics, "
            "BatchNormalization statistics, seeds, random state and callbacks are those of worker %d.",
            to.member,
            start.name,
            loaded.substituted_from,
        )
    return resumed, seconds


def _restore(to: FitState, loaded: Loaded, all_go: Callable[[str], bool]) -> tuple[Resumed, str, float]:
    """Returns also how the input got to its position, in words, and how many seconds that took."""
    where = loaded.manifest.position
    phase, epoch, batch = where["phase"], int(where["epoch"]), int(where["batch"])
    state = loaded.state
    for later in ("callbacks", "random"):  # Better now, with nothing changed, than at the first epoch.
        state[later].keys()
    to.callbacks.restore_files(state["callbacks"], loaded.values.local)
    to.variables.restore(loaded.values)
    began = time.time()
    if not to.shuffles.are_like(state.get("shuffle_seeds")):
        logger.warning(
            "NOT exact: the shuffles of the data, or their seeds, differ from those of the checkpoint, so that the "
            "data comes in another order. Call keras.utils.set_random_seed right before the dataset is "
            "made: a seed of shuffle() counts together with the global one of the moment when the dataset is made."
        )
    training = batch if phase == "train" else None
    how = inputs.restore(
        to.fit.feed, state["input"], loaded.values.local, batch=training, shuffles=to.shuffles, all_go=all_go
    )
    input_seconds = time.time() - began
    to.validations.restore(state)
    if phase == "validation":
        to.fit.feed.skip_next_epoch()
    logs = step_logs.restore(state["logs"], loaded.values.local)
    of_epoch = step_logs.restore(state.get("epoch_logs"), loaded.values.local)  # Absent before release 0.2.
    if phase == "validation" and of_epoch:
        to.fit.logs_of_an_epoch_without_steps(of_epoch, of_step=False)
    elif phase in ("train", "validation") and logs:
        to.fit.logs_of_an_epoch_without_steps(logs, of_step=True)
    to.fit.start_at(max(epoch, to.fit.epochs) if state["stopped"] else epoch)
    beside = {**loaded.values.whole, **loaded.values.local}
    everything = to.callbacks.set_weights_at_begin
    resumed = Resumed(
        Position(epoch, phase, batch, where["step"]),
        dict(state),
        logs,
        {name: value for name, value in beside.items() if name.startswith(("callbacks/", "random/"))},
        to.variables.small(loaded.values, everything=everything),
        drawing=inputs.is_drawing(state["input"], batch=training),
    )
    return resumed, how, input_seconds


def _regroup(to: FitState, found: LoadedFromOthers) -> Regrouped:
    feed = to.fit.feed
    regrouped = regroup_checkpoint(
        found,
        to.variables,
        to.member,
        to.setup,
        steps_per_execution=feed.steps_per_execution,
        num_batches=feed.position(pending=False)["num_batches"],
    )
    loaded = regrouped.loaded
    known = {**to.variables.mirrored, **to.variables.local, **to.variables.sharded}
    _, later = find_waiting(loaded.values.whole, loaded.values.local, known)
    if later:
        raise not_regrouped(later)
    return regrouped
