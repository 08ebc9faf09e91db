"""Says where two runs of a drill part, why they are likely to differ, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from keras_preempt.cli.drill.comparison import Parting
from keras_preempt.cli.drill.step_records import RunRecord
from keras_preempt.process.words import counted
from keras_preempt.state.callback_cure import cure

_DETERMINISM = (
    "call tf.config.experimental.enable_op_determinism(), "
    "or on JAX set XLA_FLAGS=--xla_gpu_deterministic_ops=true, "
    "or on torch call torch.use_deterministic_algorithms(True)"
)
_SEED = "call keras.utils.set_random_seed(...) first thing in the script"
_PYTHON_CURE = (
    "If it uses random numbers or keeps state, a restart cannot repeat it: give it what it needs as arguments, such as "
    "a seed from tf.random.stateless_uniform or from a counter."
)
_RANDOM_CURE = (
    "Its sequence starts over at a restart: use a keras.random.SeedGenerator (keras.random.uniform(..., "
    "seed=generator)) in layers, and tf.random.stateless_* with seeds of your own, such as those of "
    "tf.data.Dataset.random(seed=...), in input pipelines."
)


def describe_parting(parting: Parting | None, restarts: int) -> str:
    """Returns one line: from which step on the runs differ, and where that is; None: no recorded step differs."""
    if parting is None:
        return "All recorded steps are equal: the difference came with the end of training, or is in other state."
    what = ", ".join(parting.groups)
    if parting.logs:
        name, (one, other) = next(iter(parting.logs.items()))
        what += f"; {name} {one!r} and {other!r}"
    if parting.equal_until is None:
        since = f"From step {parting.step} on"
    elif parting.step - parting.equal_until == 1:
        since = f"After step {parting.equal_until} was equal, from step {parting.step} on"
    else:
        since = f"Between step {parting.equal_until}, which was equal, and step {parting.step}"
    within = f"fit {parting.fit} of {parting.fits}, " if parting.fits > 1 else ""
    line = f"{since} ({within}epoch {parting.epoch}, w{parting.member}) the runs differ: {what}."
    if parting.incarnation == 0:
        return f"{line} That is before the first preemption."
    if parting.fits > 1 and not parting.continued:
        return f"{line} That fit began after restart {parting.incarnation} of {restarts}, from its beginning."
    steps = parting.step - parting.began_at
    after = f"{counted(steps, 'step')} after it continued" if steps else "right where it continued,"
    return f"{line} That is {after} at step {parting.began_at}, restart {parting.incarnation} of {restarts}."


def likely_causes(
    parting: Parting | None,
    undisturbed: RunRecord,
    repeatable: bool | None,
    substituted: Sequence[str] = (),
    written: str = "",
) -> list[str]:
    """Returns likely causes, the likeliest first, each with what to do.

    `repeatable`: a second undisturbed run gave the same result; None if there was none. `substituted`: workers that
    continued from another worker's part. `written`: files that the first run left for the second one, in words.
    """
    itself = (parting is not None and parting.incarnation == 0) or repeatable is False
    at_beginning = itself and parting is not None and parting.step == 0
    at_restart = parting is not None and parting.continued and parting.began_at == parting.step > 0
    restored_wrongly = at_restart and not itself
    causes = []
    if substituted and not itself:
        return [
            f"Cause: {'; '.join(substituted)}, since its own was not written when it was killed. Metrics, seeds and "
            "statistics of a worker that is killed while it saves cannot be exact: docs/guarantees.md."
        ]
    if itself:
        causes.append(
            "The script does not repeat itself, with or without preemptions: two runs of it give different "
            "results. It has to before a drill can prove anything."
        )
    if at_beginning:
        causes.append(
            f"The initial state differs already. If the script sets no seed, {_SEED}. If it does, something before the "
            "first step differs from start to start: weights that are made before the seed is set, the order of files, "
            "the time, or what the first run has left in a file."
        )
        if written:
            causes.append(f"Files that the first run left: {written}. Add --isolate.")
        return causes
    if restored_wrongly and repeatable is not True:
        if parting is not None and "weights" in parting.groups:
            causes.append(
                "Likely cause: a callback that puts other weights into the model for a validation, if the preemption "
                "came during one. Set changes_weights_in_validation = True on its class."
            )
        causes.append(
            "The state differs right after the restart, before a step: something was not saved or not restored as "
            "it was. If the script restores or changes weights itself when it starts, let it do so only while there "
            "is no checkpoint yet; otherwise please report this, with the output of the drill."
        )
    suspects = [
        f"{doubt}." if _is_step(doubt) else f"the input. {doubt[:1].upper()}{doubt[1:]}."
        for doubt in undisturbed.input_doubts
    ]
    suspects += [
        f"{shared}. Shuffle after the split, or make a pipeline of its own for the validation."
        for shared in undisturbed.shared
    ]
    if undisturbed.unsaved_callbacks and not itself:
        names = ", ".join(undisturbed.unsaved_callbacks)
        suspects.append(f"callbacks whose state is not kept: {names}. {cure(undisturbed.unsaved_callbacks)}.")
    suspects += [
        f"{source}. {_PYTHON_CURE if source.startswith('Python code') else _RANDOM_CURE}"
        for source in undisturbed.hidden_sources
    ]
    suspects += [
        f'the log says "exact if", and this may not hold: {each}.' for each in undisturbed.conditions
    ]
    if written:
        left = (
            f"files that the first run left and the second one found: {written}. Add --isolate, which gives "
            "each run a copy of the working directory."
        )
        suspects.insert(0 if parting is None else len(suspects), left)
    for number, suspect in enumerate(suspects):
        causes.append(f"{'Other possible' if number else 'Likely'} cause: {suspect}")
    if not suspects and not restored_wrongly:
        if itself:
            causes.append(
                f"Likely cause: a missing seed ({_SEED}), a nondeterministic operation ("
                f"{_DETERMINISM}), or data that is read in an order that depends on "
                "time or threads."
            )
        elif parting is not None:
            causes.append(
                "Likely cause: state that no checkpoint holds, such as a Python variable in a layer, or data that "
                "depends on what the process has drawn before; or "
                f"an operation that is nondeterministic ({_DETERMINISM})."
            )
        else:
            causes.append(
                "Likely cause: a callback that changes weights or keeps state at the end of training; the places "
                "that differ are named above."
            )
    if repeatable is None and not itself:
        causes.append("Whether the script repeats itself without preemptions: add --twice to find out.")
    elif repeatable:
        causes.append(
            "A second undisturbed run was identical: without preemptions the script repeats itself."
        )
    return causes


def uncovered(record: RunRecord, preemptions: int) -> list[str]:
    """Names in words what a verdict "identical" does not cover, by the record of the undisturbed run."""
    found = []
    times = "one preemption" if preemptions == 1 else f"{preemptions} preemptions"
    if record.unsaved_callbacks:
        found.append(
            f"callbacks whose state is not kept ({', '.join(record.unsaved_callbacks)}): {times} made no difference, "
            f"another moment may. {cure(record.unsaved_callbacks)}"
        )
    found += [
        f"{'' if _is_step(doubt) else 'the input '}({doubt}): {times} made no difference, another moment may"
        for doubt in record.input_doubts
    ]
    found += [f"{source}: its state is not kept" for source in record.hidden_sources]
    return found


def _is_step(doubt: str) -> bool:
    return doubt.startswith(("the training step", "the validation step"))
