"""What follows from several notices at once."""

from __future__ import annotations

import pytest

from keras_preempt.notices import Notice
from keras_preempt.training.standing import Standing


def notice(
    received: float = 100.0, deadline: float | None = None, id: str = "", source: str = "aws"
) -> Notice:
    """One that was heard at that moment of a clock that nobody sets, while that of the day said something else."""
    of_the_day = 1_700_000_000.0 + received
    told = None if deadline is None else of_the_day + deadline - received
    return Notice(source, "a notice", of_the_day, told, id=id, heard_at=received)


@pytest.mark.parametrize(
    ("grace", "deadline", "gone_by", "ends_at"),
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
    grace: float | None, deadline: float | None, gone_by: float, ends_at: float | None
) -> None:
    standing = Standing(grace)
    assert standing.add(notice(deadline=deadline))
    assert (standing.gone_by, standing.ends_at) == (gone_by, ends_at)


def test_the_earliest_deadline_rules() -> None:
    standing = Standing()
    assert standing.add(notice(deadline=200.0, id="a"))
    assert not standing.add(notice(deadline=300.0, id="b"))
    assert standing.add(notice(deadline=150.0, id="c"))
    assert standing.gone_by == 150.0
    assert standing.first.id == "c"


def test_a_notice_replaces_the_one_of_the_same_event() -> None:
    standing = Standing()
    standing.add(notice(deadline=200.0, id="a"))
    standing.add(notice(deadline=300.0, id="a"))
    assert standing.gone_by == 300.0


def test_a_signal_that_is_sent_again_does_not_begin_the_grace_period_anew() -> None:
    standing = Standing(grace=30.0)
    standing.add(notice(received=100.0, source="signal"))
    assert not standing.add(notice(received=120.0, source="signal"))
    assert standing.gone_by == 130.0


def test_a_withdrawn_notice_leaves_the_others() -> None:
    standing = Standing()
    standing.add(notice(deadline=150.0, id="a"))
    standing.add(notice(deadline=200.0, id="b"))
    assert standing.withdraw(notice(id="a"))
    assert not standing.withdraw(notice(id="a"))
    assert standing.gone_by == 200.0
    assert standing.withdraw(notice(id="b"))
    assert not standing
    assert standing.ends_at is None
