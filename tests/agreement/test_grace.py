"""Which notices stand, what an end takes, and how long to wait for others before it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from keras_preempt.agreement.grace import MARGIN, Standing, has_room, longest_wait, reserve, too_late
from keras_preempt.notices import Notice


def test_reserve_covers_a_save_and_a_step_twice_as_slow_as_any_seen() -> None:
    assert reserve(10.0, 2.0, 1.0, margin=0.5) == 20.0 + 4.0 + 1.0 + 0.5
    for wrong in ((-1.0, 0.0, 0.0), (0.0, float("nan"), 0.0), (0.0, 0.0, float("inf"))):
        with pytest.raises(ValueError, match="Expected finite seconds"):
            reserve(*wrong)


def test_room_means_three_times_what_is_measured_and_the_margin_once() -> None:
    assert has_room(127.1, 100.0, 10.0, margin=1.5)
    assert not has_room(127.0, 100.0, 10.0, margin=1.5)


def test_by_how_much_a_step_misses_the_deadline() -> None:
    assert too_late(110.0, 100.0, save_seconds=4.0, step_seconds=9.0) == 3.0
    assert too_late(110.0, 100.0, save_seconds=4.0, step_seconds=6.0) == 0.0


@pytest.mark.parametrize(("left", "save"), itertools.product([3.0, 6.0, 30.0, 600.0], [0.1, 1.0, 5.0]))
def test_there_is_room_for_a_whole_save_after_the_wait_unless_there_was_none_before_it(
    left: float, save: float
) -> None:
    wait = longest_wait(left, save)
    assert 0 <= wait <= left
    if left >= 4 * save + MARGIN:  # For the others to be twice as slow as ever, and for this worker too.
        assert wait >= 2 * save
        assert left - wait >= 2 * save


def test_a_worker_without_room_waits_to_its_end_for_what_the_others_do() -> None:
    assert longest_wait(2.0, save_seconds=10.0) == 2.0
    assert longest_wait(-1.0, save_seconds=10.0) == 0.0


def notice(
    received: float = 100.0, deadline: float | None = None, id: str = "", source: str = "aws"
) -> Notice:
    """One that was heard at that moment of a clock that nobody sets, while that of the day said something else."""
    of_the_day = 1_700_000_000.0 + received
    told = None if deadline is None else of_the_day + deadline - received
    return Notice(source, "a notice", of_the_day, told, id=id, heard_at=received)


@pytest.mark.parametrize(
    ("grace", "deadline", "save_deadline", "ends_at"),
    [
        (None, None, 100.0, None),  # Nobody says how long: at once.
        (None, 160.0, 160.0, 160.0),
        (30.0, None, 130.0, 130.0),
        (30.0, 160.0, 130.0, 130.0),
        (300.0, 160.0, 160.0, 160.0),
        (0.0, None, 100.0, None),
        (0.0, 160.0, 100.0, 160.0),  # The user wants to be gone at once; storage may use the time there is.
    ],
)
def test_what_the_user_says_and_what_the_notice_says(
    grace: float | None, deadline: float | None, save_deadline: float, ends_at: float | None
) -> None:
    standing = Standing(grace).add(notice(deadline=deadline))
    assert (standing.save_deadline, standing.ends_at) == (save_deadline, ends_at)


def test_the_earliest_deadline_decides_and_a_notice_replaces_the_one_of_the_same_event() -> None:
    one = Standing().add(notice(deadline=200.0, id="a"))
    other = one.add(notice(deadline=300.0, id="b"))
    assert other.save_deadline == 200.0
    third = other.add(notice(deadline=150.0, id="c"))
    assert (third.save_deadline, third.first.id) == (150.0, "c")
    assert one.add(notice(deadline=300.0, id="a")).save_deadline == 300.0


def test_a_signal_that_is_sent_again_does_not_begin_the_grace_period_anew() -> None:
    first = Standing(grace=30.0).add(notice(received=100.0, source="signal"))
    assert first.add(notice(received=120.0, source="signal")) == first
    assert first.add(notice(received=120.0, source="signal")).save_deadline == 130.0


def test_a_withdrawn_notice_leaves_the_others() -> None:
    both = Standing().add(notice(deadline=150.0, id="a")).add(notice(deadline=200.0, id="b"))
    second = both.withdraw(notice(id="a"))
    assert second.withdraw(notice(id="a")) == second
    assert second.save_deadline == 200.0
    none = second.withdraw(notice(id="b"))
    assert not none
    assert none.ends_at is None


def test_a_grace_period_does_not_move_an_end_that_was_known_all_along() -> None:
    limit = replace(notice(100.0, 130.0, source="time limit"), foreseen=True)
    for grace in (None, 0.0, 5.0, 60.0):
        standing = Standing(grace).add(limit)
        assert (standing.save_deadline, standing.ends_at) == (130.0, 130.0)
    both = Standing(5.0).add(limit).add(notice(110.0))
    assert (both.first.source, both.save_deadline, both.ends_at) == ("aws", 115.0, 115.0)
    assert Standing().add(replace(notice(100.0), foreseen=True)).save_deadline == 100.0  # It is over.
