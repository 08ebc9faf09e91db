"""Notes on errors at the start of a fit: that this package raised them, what it was doing, and what helps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

logger = logging.getLogger("keras_preempt")

_MARK = "keras_preempt raised this"


@dataclass(frozen=True)
class Stage:
    """A part of the start of a fit: what is being done, after "while it", and what to do about an error there."""

    doing: str
    cure: str


_WITHOUT = "To train without being preemptible meanwhile, take the PreemptionCallback out of callbacks=[...]."

LOOKING = Stage(
    "looked at what this fit is called with (callbacks, strategy, termination settings)",
    f"Change what the message names. {_WITHOUT}",
)
DESCRIBING = Stage(
    "traced the training step and described the model's variables, before the first step",
    f"If model.fit runs without the callback, this is a defect of keras_preempt: please report it. {_WITHOUT}",
)
AGREEING = Stage(
    "claimed the checkpoint directory and looked for a checkpoint there",
    "Nothing was trained. Do what the message says, or pass another directory.",
)
RESTORING = Stage(
    "restored a checkpoint",
    "Nothing was trained, and the checkpoint is as it was. Train with the program that has saved it, or pass another "
    "directory to start from the beginning.",
)
CAPTURING = Stage(
    "tried out, before the first step, whether the state of the callbacks can be saved",
    f"Return plain data from get_state(), or leave it out. {_WITHOUT}",
)


def explain(error: BaseException, stage: Stage) -> None:
    """Adds to an error on its way out of the fit that this package raised it, what it was doing and what helps; once.

    Where Python has no notes (3.10), it goes to the log as an error.
    """
    if not isinstance(error, Exception):
        return  # The user or the machine ends the process.
    note = f"{_MARK} at the start of fit, while it {stage.doing}. {stage.cure}"
    if any(str(each).startswith(_MARK) for each in vars(error).get("__notes__", ())):
        return
    add_note = getattr(error, "add_note", None)
    if add_note is None:
        logger.error("%s: %s. %s", type(error).__name__, error, note)
    else:
        add_note(note)


@dataclass
class Reached:
    """How far the start has come."""

    stage: Stage


@contextlib.contextmanager
def explained(stage: Stage) -> Iterator[Reached]:
    """Explains errors that leave the block, which begins in `stage`, by the stage that it has reached."""
    reached = Reached(stage)
    try:
        yield reached
    except Exception as error:
        explain(error, reached.stage)
        raise
