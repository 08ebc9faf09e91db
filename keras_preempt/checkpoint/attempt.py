"""An attempt to save a checkpoint: the same on every worker that takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.layout import attempt_directory, parse_attempt
from keras_preempt.checkpoint.values import Box, Value


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt to save a checkpoint: what all workers that take part agree on.

    Attributes:
        step: Training steps done.
        name: From `layout.attempt_name`; it says which start of the job saves.
        position: Where in the training, as JSON; the same for every worker.
        kind: See `Manifest`, as are `finished`, `reason` and `versions`.
        members: How many workers the job has; they are numbered from 0.
        writers: Those that write what all workers hold; all of them must arrive.
        doomed: Those whose part may be missing, since they are being taken away; not the writers among them.
        values: What the workers store together.
        lost: Workers that have turned out to be gone: no piece of a divided value is theirs to write.
        boxes: What each worker has to write of the values, by its number; also one under notice, if nobody else can.

    Raises `division.PiecesLost` if nobody that is left holds a piece of a divided value.
    """

    step: int
    name: str
    position: Mapping[str, Any]
    kind: str
    members: int
    writers: tuple[int, ...]
    doomed: tuple[int, ...] = ()
    finished: bool = False
    reason: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    values: Sequence[Value] = ()
    lost: frozenset[int] = frozenset()
    boxes: Mapping[int, Sequence[Box]] = field(init=False)

    def __post_init__(self) -> None:
        if not self.writers or not {*self.writers, *self.doomed} <= set(range(self.members)):
            raise ValueError(
                f"Expected at least one writer, and writers and doomed ones among {self.members} workers numbered "
                f"from 0. Received: writers {list(self.writers)}, doomed {list(self.doomed)}. Correct the plan."
            )
        parse_attempt(self.name)
        for name in ("position", "versions"):  # As they will be read back.
            object.__setattr__(self, name, documents.as_read(dict(getattr(self, name))))
        object.__setattr__(self, "boxes", divide(self.values, self.writers, self.lost))
        if not self.boxes.keys() <= set(range(self.members)):
            raise ValueError(
                f"Expected pieces of sharded tensors held by {self.members} workers numbered from 0. Received: some "
                f"held by {sorted(self.boxes)}. Number the processes as the coordinator does."
            )

    @property
    def directory(self) -> str:
        return attempt_directory(self.step, self.name)

    @property
    def holders(self) -> tuple[int, ...]:
        """The workers that have to write pieces of divided values."""
        return tuple(sorted(m for m, boxes in self.boxes.items() if not all(box.flat for box in boxes)))

    @property
    def required(self) -> frozenset[int]:
        """The workers whose parts must arrive."""
        return frozenset(range(self.members)).difference(self.doomed) | {*self.writers, *self.holders}

    @property
    def incarnation(self) -> int:
        return parse_attempt(self.name)[0]
