"""How long a worker waits for the others in a save, and who writes when some of them are gone."""

from __future__ import annotations

import itertools

import pytest

from keras_preempt.agreement.alignment import Kind, Plan
from keras_preempt.agreement.plan import without
from keras_preempt.training.grace import MARGIN
from keras_preempt.training.waiting import longest_wait


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


MEMBERS = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("writers", "doomed", "late", "own", "expected"),
    [
        ((0, 1), (2, 3), [1], 0, (0,)),  # Another writer takes its part over.
        ((0, 1), (2, 3), [0], 3, (1,)),
        ((0, 1), (2, 3), [0, 1], 2, (2,)),  # None is left: the first worker under notice.
        ((0, 1), (2, 3), [0, 1], 3, (2,)),
        ((2,), (0, 1, 3), [2], 3, (0,)),
        ((0, 1, 2, 3), (0, 1, 2, 3), [0, 2], 1, (1, 3)),
        ((2,), (0, 1, 3), [], 3, (3,)),  # Nobody is known to be late, and still nothing came.
    ],
)
def test_who_writes_when_writers_are_gone(
    writers: tuple[int, ...], doomed: tuple[int, ...], late: list[int], own: int, expected: tuple[int, ...]
) -> None:
    plan = without(Plan(7, Kind.PREEMPTED, writers, doomed), late, MEMBERS, own)
    assert plan.writers == expected
    assert plan.target == 7
    # Nobody but the writers has to arrive.
    assert set(plan.doomed) >= set(MEMBERS) - set(plan.writers)


@pytest.mark.parametrize("own", MEMBERS)
def test_whoever_dies_and_in_whatever_order_it_ends_with_this_worker_writing_everything(own: int) -> None:
    plan = Plan(7, Kind.PREEMPTED, (0, 1), (2, 3))
    late: list[int] = []
    while plan.writers != (own,) and len(late) < len(MEMBERS):
        late += [member for member in plan.writers if member != own][:1]
        plan = without(plan, late, MEMBERS, own)
    assert plan.writers == (own,)
