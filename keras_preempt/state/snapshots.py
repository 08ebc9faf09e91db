"""Snapshots of the training input, taken while it is drawn, from which a restart continues.

A strategy draws some batches ahead of training, in threads of its own, so that there is no state of the input that
belongs to the batch at which a fit is preempted. A snapshot belongs to an element of this process' part of the dataset
that was drawn when it was taken. It serves every position from that element on: a restart draws the elements between
again, a stretch that does not grow with the run. `keras_preempt.training.save.snapshots` decides when one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.report.progress import progress
from keras_preempt.state.drawing import too_short

if TYPE_CHECKING:
    from keras_preempt.backend.seam import Tap

_SNAPSHOT = "input/snapshot"


@dataclass(frozen=True)
class Snapshot:
    """The state of the input after some elements of this process' part; `to_bytes` returns what `Tap.restore` takes."""

    drawn: int
    to_bytes: Callable[[], bytes]


class Snapshots:
    """The snapshots of the iterator that training draws from; those of the feed are made through the tap from now on.

    `limit` is the most bytes of a snapshot, and `expected` how many seconds the first one is expected to take.

    Attributes:
        given_up: Why no more are taken, in words; empty while they are.
        held: Bytes of the newest one.
    """

    def __init__(self, feed: InputFeed, tap: Tap, limit: float, expected: float = 0.0) -> None:
        self.expected = expected
        self._feed = feed
        self._tap = tap
        self._limit = limit
        self._kept: list[Snapshot] = []
        self._continued: tuple[Snapshot, int] | None = None
        self._drawn_again = 0
        self.given_up = ""
        self.held = 0
        self._plain = feed.iterate
        feed.iterate = self._iterate

    # -- While training -----------------------------------------------------------------------------------

    def take(self, batches: int) -> bool:
        """Takes a snapshot, after so many batches of the iterator; returns whether there is one more.

        Can be called while the strategy draws.
        """
        if self.given_up:
            return False
        state = self._tap.state()
        if state is None:
            self.given_up = f"{self._tap.library} cannot save its state"
        elif state.size > self._limit:
            self.given_up = f"its state has {state.size / 2**20:.0f} MiB, more than {self._limit / 2**20:.0f}"
        if state is None or self.given_up:
            return False
        # At its end, an iterator keeps nothing, and a shuffle drops the reshuffling of the epochs to come.
        if state.drawn is None or not state.keeps_every_shuffle(self._feed.pipelines):
            return False
        self._kept = [*self._kept[self._serving(batches) :], Snapshot(state.drawn, state.to_bytes)]
        self.held = state.size
        return True

    def _serving(self, batches: int) -> int:
        """Returns which of the kept ones is the newest at or before a position; 0 if none is."""
        there = batches * self._tap.per_batch
        return max((at for at, each in enumerate(self._kept) if each.drawn <= there), default=0)

    def _iterate(self) -> Any:
        continued, self._continued = self._continued, None
        self._kept = []  # They are of the iterator before this one.
        if self.given_up:
            self.held = 0
            return self._plain()
        self._tap.begin()
        if continued is None:
            self.take(0)
        else:
            snapshot, there = continued
            self._tap.restore(snapshot.to_bytes(), snapshot.drawn)
            self._kept = [snapshot]
            self._drawn_again, missing = 0, there - snapshot.drawn
            per_batch = self._tap.per_batch
            with progress("Replaying the input", total=-(-missing // per_batch), unit="batches") as step:
                while self._drawn_again < missing and self._tap.skip():
                    self._drawn_again += 1
                    if self._drawn_again % per_batch == 0:
                        step()
        return self._tap.iterate()

    # -- Saving and continuing ----------------------------------------------------------------------------

    def capture(self, batches: int, arrays: dict[str, Array]) -> dict[str, Any] | None:
        """Returns the snapshot that serves a position after so many batches, its state added to `arrays`; or None."""
        if not self._kept or self._kept[0].drawn > batches * self._tap.per_batch:
            return None
        snapshot = self._kept[self._serving(batches)]
        arrays[_SNAPSHOT] = np.frombuffer(snapshot.to_bytes(), np.uint8)
        return {"drawn": snapshot.drawn, **self._kind()}

    def refuses(self, captured: Mapping[str, Any], batches: int) -> str:
        """Returns why a position after so many batches cannot be reached from `captured`, in words; empty if it can."""
        if self.given_up:
            return self.given_up
        if int(captured["drawn"]) > batches * self._tap.per_batch:
            return f"it was taken after batch {batches}"
        return next(
            (
                f"its {name} was {captured.get(name)}, and is {here}"
                for name, here in self._kind().items()
                if captured.get(name) != here
            ),
            "",
        )

    def _kind(self) -> dict[str, Any]:
        # What belongs to another part of the dataset, or to another release, is not even tried.
        return {
            "part": list(self._tap.shard),
            "elements a batch": self._tap.per_batch,
            self._tap.library: self._tap.release,
        }

    def resume(
        self, captured: Mapping[str, Any], arrays: Mapping[str, Array], batches: int, required: int
    ) -> tuple[Any, str, int]:
        """Makes the iterator that training continues with, of which so many batches had been drawn.

        Returns it, where it came from, in words, and how many batches were drawn again. Raises `ValueError` if the
        snapshot does not fit the pipeline, or there are fewer batches than `required`.
        """
        state = arrays[_SNAPSHOT].tobytes()
        snapshot = Snapshot(int(captured["drawn"]), lambda: state)
        there = batches * self._tap.per_batch
        self._continued = snapshot, there
        live = self._feed.new()
        self.held = len(state)
        found = snapshot.drawn + self._drawn_again
        # Another process' part may be longer: this one then hands out nothing for a while.
        if self._tap.shard[1] == 1 and found <= (required - 1) * self._tap.per_batch:
            raise too_short(required, -(-found // self._tap.per_batch))
        again = -(-self._drawn_again // self._tap.per_batch)
        return live, f"from a snapshot of {len(state) / 1024:.0f} KiB", again
