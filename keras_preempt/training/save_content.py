"""What a save holds, what of it one worker writes, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.boxes import Box
from keras_preempt.checkpoint.partition import Slice
from keras_preempt.checkpoint.tensors import Array


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
    """What a save holds beside the variables.

    Attributes:
        state: This worker's JSON state.
        arrays: Arrays beside it.
        mirrored: Arrays that every worker holds alike; the writers share them like the mirrored variables.
        overrides: Values of variables to write instead of the present ones.
        boxes: The same of pieces of sharded variables that this worker holds.
    """

    state: Mapping[str, Any]
    arrays: Mapping[str, Array]
    mirrored: Mapping[str, Array]
    overrides: Mapping[str, Array]
    boxes: Mapping[Box, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """What one worker writes of a checkpoint, on the host.

    Attributes:
        attempt: The checkpoint.
        mirrored: This worker's share of the mirrored tensors.
        local: Its own tensors.
        state: Its own JSON state.
        began_at: When training stopped for this save, in seconds since 1970; None if it did not.
        ready_at: When everything was on the host.
        background: Whether training went on then.
        sharded: The pieces of sharded tensors that this worker writes.
    """

    attempt: Attempt
    mirrored: list[tuple[Slice, Array]]
    local: dict[str, Array]
    state: Mapping[str, Any]
    began_at: float | None = None
    ready_at: float | None = None
    background: bool = False
    sharded: Sequence[tuple[Box, Array]] = ()

    @property
    def times(self) -> dict[str, object]:
        """What it has cost training, for the events."""
        return {"began_at": self.began_at, "ready_at": self.ready_at, "background": self.background}
