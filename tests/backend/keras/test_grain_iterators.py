"""States of an iterator are kept as it is drawn: few, and the one that a save needs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from keras_preempt.backend.keras import grain_iterators
from keras_preempt.backend.keras.grain_iterators import GrainIterators, GrainState


class Counting:
    """An iterator in the manner of Grain; its state is where it stands."""

    asked = 0

    def __init__(self, end: int = 1000) -> None:
        self._at, self._end = 0, end

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._at == self._end:
            raise StopIteration
        self._at += 1
        return self._at - 1

    def get_state(self) -> dict[str, int]:
        type(self).asked += 1
        return {"at": self._at}

    def set_state(self, state: dict[str, int]) -> None:
        self._at = state["at"]


class Stateless(Counting):
    def get_state(self) -> dict[str, int]:
        raise NotImplementedError("no state")


class Forgetful(Counting):
    def set_state(self, state: dict[str, int]) -> None:
        pass


def iterators(kind: type[Counting] = Counting) -> tuple[GrainIterators, Any]:
    made = GrainIterators()
    return made, made.around(kind)


def each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a second after the one before: taking a state costs one."""
    seconds = itertools.count()
    monkeypatch.setattr(grain_iterators.time, "monotonic", lambda: float(next(seconds)))


def test_a_state_is_of_the_batch_that_training_has_come_to_and_not_of_those_drawn_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grain_iterators, "_SHARE", float("inf"))
    made, make = iterators()
    live = iter(make())
    made.trained = lambda: 5
    for _ in range(9):
        next(live)
    assert made.state_at(5) == GrainState(5, {"at": 5})
    assert made.state_at(7) == GrainState(7, {"at": 7})
    assert made.state_at(4) is None, "what no save will ask for is kept"
    made.live = None
    assert made.state_at(5) is None
    assert made.state_at(0) == GrainState(0)


def test_states_cost_at_most_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = iterators()
    live = iter(make())
    each_second(monkeypatch)
    Counting.asked = 0
    for _ in range(1000):
        next(live)
    assert 5 <= Counting.asked <= 11
    state = made.state_at(1000)
    assert state is not None
    assert state.batches >= 850


def test_an_iterator_begins_at_a_state_and_the_batches_between_are_drawn_again() -> None:
    made, make = iterators()
    drawn: list[None] = []
    assert made.begin_at(GrainState(4, {"at": 4}), 6, lambda: drawn.append(None)) == 6
    assert len(drawn) == 2
    state = made.state_at(6)
    assert state is not None, "a save before the first batch"
    assert state.batches <= 6
    assert list(itertools.islice(iter(make()), 3)) == [6, 7, 8]
    made.live = None
    assert next(iter(make())) == 0, "the next epoch begins at its beginning"


def test_data_that_has_become_shorter_is_told() -> None:
    made = GrainIterators()
    made.around(lambda: Counting(end=5))
    assert made.begin_at(GrainState(4, {"at": 4}), 8, lambda: None) == 5


def test_a_state_that_an_iterator_does_not_take_is_refused() -> None:
    made, _ = iterators(Forgetful)
    with pytest.raises(ValueError, match="Expected a Grain iterator at"):
        made.begin_at(GrainState(4, {"at": 4}), 4, lambda: None)


def test_an_iterator_without_a_state_trains_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    made, make = iterators(Stateless)
    live = iter(make())
    with caplog.at_level(logging.WARNING):
        assert [next(live) for _ in range(3)] == [0, 1, 2]
    assert len(caplog.messages) == 1
    assert "no state that can be taken" in caplog.messages[0]
    assert made.state_at(3) == GrainState(0)
    made.begin_at(GrainState(0), 3, lambda: None)
    assert next(iter(make())) == 3
