from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.agreement.alignment import Position
from keras_preempt.process import environment
from keras_preempt.training.schedule import Schedule, chosen, parse


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        (None, Schedule()),
        (100, Schedule(steps=100)),
        ("epoch", Schedule(epochs=True)),
        ("10min", Schedule(seconds=600)),
        ("90s", Schedule(seconds=90)),
        ("1.5 h", Schedule(seconds=5400)),
        (datetime.timedelta(hours=2), Schedule(seconds=7200)),
    ],
)
def test_every_way_to_say_it_is_understood(given: object, schedule: object) -> None:
    assert parse(given) == schedule


@pytest.mark.parametrize(
    "given", [0, -1, True, 1.5, "", "epochs", "10", "ten minutes", "0s", datetime.timedelta(0), [], b"epoch"]
)
def test_anything_else_is_refused_with_what_was_expected_and_received(given: object) -> None:
    with pytest.raises(ValueError, match="Expected save_every") as refused:
        parse(given)
    assert repr(given) in str(refused.value)


@given(every=st.integers(1, 9), per_execution=st.integers(1, 5), start=st.integers(0, 30))
def test_each_multiple_of_the_steps_is_saved_once_at_the_first_boundary_that_reaches_it(
    every: int, per_execution: int, start: int
) -> None:
    schedule = Schedule(steps=every)
    saved = Position(0, "train", 0, start)
    steps = []
    for step in range(start, start + 60, per_execution):
        here = Position(0, "train", 0, step)
        if schedule.due(here, saved):
            steps.append(step)
            saved = here
    passed = {multiple for multiple in range(every, start + 60, every) if start < multiple}
    reached = {min(s for s in range(start, start + 65, per_execution) if s >= m) for m in passed}
    assert steps == sorted(step for step in reached if step < start + 60)


@given(step=st.integers(0, 1000), every=st.integers(1, 50))
def test_no_multiple_lies_closer_than_the_steps_that_are_left(step: int, every: int) -> None:
    left = Schedule(steps=every).steps_left(step)
    assert left is not None
    assert (step + left) % every == 0
    assert not [s for s in range(step + 1, step + left) if s % every == 0]


def test_an_epoch_is_saved_when_it_begins_but_not_where_the_fit_began() -> None:
    schedule = Schedule(epochs=True)
    assert not schedule.due(Position(2, "epoch", 0, 12), Position(2, "epoch", 0, 12))
    assert not schedule.due(Position(3, "train", 0, 18), Position(2, "epoch", 0, 12))
    assert schedule.due(Position(3, "epoch", 0, 18), Position(2, "epoch", 0, 12))


def test_the_environment_replaces_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.SAVE_EVERY, raising=False)
    assert chosen("epoch") == Schedule(epochs=True)
    monkeypatch.setenv(environment.SAVE_EVERY, "")
    assert chosen("epoch") == Schedule(epochs=True)
    for text, expected in (
        ("50", Schedule(steps=50)),
        ("epoch", Schedule(epochs=True)),
        ("10min", Schedule(seconds=600.0)),
    ):
        monkeypatch.setenv(environment.SAVE_EVERY, text)
        assert chosen(None) == chosen(7) == expected
    with pytest.raises(ValueError, match="Expected save_every"):
        chosen("wrong in the script")
    monkeypatch.setenv(environment.SAVE_EVERY, "0")
    with pytest.raises(ValueError, match=f"{environment.SAVE_EVERY}: Expected save_every"):
        chosen(None)
