"""Of the snapshots of a distributed input, the newest that serves a position is saved, and continued from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_preempt.state.snapshots import Snapshots

PER_BATCH = 2
AHEAD = 3
"""Elements that the strategy has drawn ahead of training."""


@dataclass
class State:
    drawn: int | None
    size: int

    def keeps_every_shuffle(self, pipelines: Any) -> bool:
        return True

    def to_bytes(self) -> bytes:
        return json.dumps(self.drawn).encode().ljust(self.size)


class Tap:
    """Draws the numbers from 0 up to a length, the strategy always some ahead of training."""

    library = "TensorFlow"
    release = "2.0"
    per_batch = PER_BATCH

    def __init__(self, length: int = 1000, shard: tuple[int, int] = (0, 1)) -> None:
        self.shard = shard
        self.length = length
        self.drawn = 0
        self.size = 10
        self.can_be_saved = True

    def begin(self) -> None:
        self.drawn = 0

    def state(self) -> State | None:
        if not self.can_be_saved:
            return None
        return State(self.drawn if self.drawn < self.length else None, self.size)

    def restore(self, state: bytes, number: int) -> None:
        assert json.loads(state) == number
        self.drawn = number

    def skip(self) -> bool:
        if self.drawn >= self.length:
            return False
        self.drawn += 1
        return True

    def iterate(self) -> Any:
        return iter(())

    def trained(self, batches: int) -> int:
        """Training has drawn so many batches; returns how many."""
        self.drawn = min(self.length, batches * PER_BATCH + AHEAD)
        return batches


def snapshots_of(tap: Tap, limit: int = 100) -> Snapshots:
    """Those of a feed whose pipelines hold no shuffle."""
    feed = SimpleNamespace(pipelines=[], iterate=lambda: "as without a tap")
    feed.new = lambda: feed.iterate()
    snapshots = Snapshots(feed, tap, limit)  # type: ignore[arg-type]
    feed.new()
    return snapshots


def drawn_at(snapshots: Snapshots, batches: int) -> int | None:
    """How many elements had been drawn for the snapshot that a save at this position would hold."""
    arrays: dict[str, np.ndarray] = {}
    captured = snapshots.capture(batches, arrays)
    if captured is None:
        assert not arrays
        return None
    assert json.loads(arrays["input/snapshot"].tobytes()) == captured["drawn"]
    return int(captured["drawn"])


@pytest.fixture
def tap() -> Tap:
    return Tap()


@pytest.fixture
def snapshots(tap: Tap) -> Snapshots:
    return snapshots_of(tap)


def test_a_snapshot_serves_once_training_has_come_to_what_was_drawn(tap: Tap, snapshots: Snapshots) -> None:
    assert snapshots.take(tap.trained(5))
    found = {batches: drawn_at(snapshots, batches) for batches in (0, 5, 6, 7, 90)}
    assert found == {0: 0, 5: 0, 6: 0, 7: 13, 90: 13}  # The beginning serves before.


def test_the_newest_that_serves_is_saved_and_the_older_ones_go(tap: Tap, snapshots: Snapshots) -> None:
    for batches in (5, 10, 20, 21):
        assert snapshots.take(tap.trained(batches))
    assert [drawn_at(snapshots, batches) for batches in (21, 22, 23)] == [23, 43, 45]
    assert len(snapshots._kept) == 3


def test_the_end_of_the_data_is_no_snapshot_and_no_reason_to_give_up() -> None:
    tap = Tap(length=12)
    snapshots = snapshots_of(tap)
    assert not snapshots.take(tap.trained(5))
    assert (drawn_at(snapshots, 5), snapshots.given_up) == (0, "")


@pytest.mark.parametrize(
    ("change", "why"), [({"can_be_saved": False}, "cannot save"), ({"size": 101}, "MiB")]
)
def test_where_no_more_can_be_kept_the_last_one_serves_and_new_iterators_are_plain(
    change: dict[str, Any], why: str, tap: Tap, snapshots: Snapshots
) -> None:
    snapshots.take(tap.trained(5))
    vars(tap).update(change)
    assert not snapshots.take(tap.trained(10))
    assert why in snapshots.given_up
    vars(tap).update(can_be_saved=True, size=10)
    assert not snapshots.take(tap.trained(20))
    assert drawn_at(snapshots, 20) == 13
    assert snapshots._feed.new() == "as without a tap"
    assert drawn_at(snapshots, 50) is None


def resumed(captured: Any, tap: Tap, batches: int, required: int = 1) -> Snapshots:
    snapshots = snapshots_of(tap)
    state, arrays = captured
    assert not snapshots.refuses(state, batches)
    _, how, again = snapshots.resume(state, arrays, batches, required)
    assert how.endswith("KiB")
    assert again > 0
    return snapshots


def captured_at(batches: int, tap: Tap) -> tuple[Any, dict[str, np.ndarray]]:
    snapshots = snapshots_of(tap)
    snapshots.take(tap.trained(5))
    tap.trained(batches)
    arrays: dict[str, np.ndarray] = {}
    return json.loads(json.dumps(snapshots.capture(batches, arrays))), arrays


def test_elements_are_drawn_again_up_to_the_position_and_a_snapshot_serves_twice_in_a_row(tap: Tap) -> None:
    snapshots = resumed(captured_at(9, Tap()), tap, 9)
    assert tap.drawn == 9 * PER_BATCH
    tap.trained(11)
    assert drawn_at(snapshots, 11) == 13
    snapshots.take(11)
    assert [drawn_at(snapshots, batches) for batches in (12, 13)] == [13, 25]


@pytest.mark.parametrize(
    ("name", "value"), [("part", [1, 2]), ("elements a batch", 4), ("TensorFlow", "1.0")]
)
def test_a_snapshot_of_something_else_or_from_after_the_position_is_refused(name: str, value: object) -> None:
    snapshots = snapshots_of(Tap(shard=(0, 2)))
    snapshots.take(5)
    state = snapshots.capture(5, {})
    assert state is not None
    assert snapshots.refuses(state, 5) == ""
    assert snapshots.refuses({**state, name: value}, 5).startswith(f"its {name} was {value}, and is ")
    assert state["TensorFlow"] == "2.0"
    state, _ = captured_at(9, Tap())
    refused = [snapshots_of(Tap()).refuses(state, batches) for batches in (6, 7)]
    assert refused == ["it was taken after batch 6", ""]


def test_data_that_has_become_shorter_is_refused_where_this_process_has_all_of_it() -> None:
    captured = captured_at(9, Tap())
    with pytest.raises(ValueError, match=r"at least 9 batches.*ended after 8"):
        resumed(captured, Tap(length=16), 9, required=9)
    resumed(captured, Tap(length=17), 9, required=9)  # The last batch may be of fewer replicas.
    part = captured_at(9, Tap(shard=(1, 2)))
    resumed(part, Tap(length=15, shard=(1, 2)), 9, required=9)  # Another's part may be longer.
