"""What a save holds, what of it one worker writes, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.checkpoint.writer import WorkerShare


@dataclass(frozen=True)
class Saved:
    """The outcome of a save.

    Attributes:
        name: The folder of the committed checkpoint; None if there is none.
        seconds: How long the save took this worker.
        missing: Workers whose local part is missing.
        uncertain: Whether it may be committed nevertheless: the storage has not answered, and may still carry it out.
        late: Writers because of which the save failed: they are gone, or too slow.
        cut: Whether it failed only because this worker has no time to wait longer: its machine goes soon.
    """

    name: str | None
    seconds: float
    missing: tuple[int, ...] = ()
    uncertain: bool = False
    late: tuple[int, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Content:
    """What a save holds beside the present values of the variables.

    Attributes:
        state: This worker's JSON state.
        values: Arrays beside it; a value under the name of a variable is saved in place of the present one.
    """

    state: Mapping[str, Any]
    values: WorkerValues = field(default_factory=WorkerValues)


@dataclass(frozen=True)
class Prepared:
    """What one worker writes of a checkpoint, on the host.

    Attributes:
        attempt: The checkpoint.
        share: What this worker writes.
        began_at: When training stopped for this save, in seconds since 1970; None if it did not.
        ready_at: When everything was on the host.
        background: Whether training went on then.
    """

    attempt: Attempt
    share: WorkerShare
    began_at: float | None = None
    ready_at: float | None = None
    background: bool = False

    @property
    def times(self) -> dict[str, object]:
        """What it has cost training, for the events."""
        return {"began_at": self.began_at, "ready_at": self.ready_at, "background": self.background}
