"""What the workers of a fit have agreed to begin with."""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.checkpoint.reader import Loaded


@dataclass(frozen=True)
class Start:
    """What the workers began with.

    Attributes:
        incarnation: The number of this start of the run, from 1.
        restored: The checkpoint to continue from, as this worker reads it, or None for a new run.
        name: The folder of that checkpoint; "" for a new run.
        skipped: Newer checkpoints that could not be used, each with the reason.
        exchanged: Whether the workers have read it together.
    """

    incarnation: int
    restored: Loaded | None
    name: str
    skipped: tuple[str, ...]
    exchanged: bool = False
