"""Who writes a checkpoint in place of writers that are gone.

This is not part of the exploration in `test_explored`. After the plan there are no more messages: every survivor
stands at the target and decides alone, by what it has seen of storage and has heard of losses. So what has to hold is
about one function. It is tried here for every small cluster, whoever is gone and in whatever order a survivor learns of
it. Survivors may still decide differently where one takes a slow writer for lost. Then each attempt is complete or not
committed: its manifest is checked against all parts and created once (`tests/checkpoint/test_commit.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from keras_preempt.agreement.alignment import make_plan, without
from keras_preempt.agreement.messages import At, Call, Kind, Plan


def test_one_that_knows_of_nobody_who_is_late_and_gets_nothing_writes_everything() -> None:
    plan = without(Plan(7, Kind.PREEMPTED, (2,), (0, 1, 3)), [], (0, 1, 2, 3), 3)
    assert (plan.writers, plan.target) == ((3,), 7)
    assert set(plan.doomed) >= {0, 1, 2}, "nobody but the writer has to arrive"


def subsets(members: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for count in range(len(members) + 1):
        yield from itertools.combinations(members, count)


def plans(members: tuple[int, ...]) -> Iterator[Plan]:
    """One for each set of workers under notice."""
    for doomed in subsets(members):
        answers = [At(member, 7, None, member in doomed) for member in members]
        yield make_plan(Call(members[0], Kind.PERIODIC), answers, members)


def ways_to_learn(plan: Plan, gone: set[int], known: tuple[int, ...], own: int) -> Iterator[tuple[int, ...]]:
    """The writers that a survivor ends with, for each order in which it may learn which writers are gone."""
    late = tuple(sorted(gone.intersection(plan.writers)))
    if not late:
        yield plan.writers
    for news in subsets(late):
        if news:
            learned = (*known, *news)
            members = tuple(sorted({*plan.writers, *plan.doomed}))
            heirs = without(plan, learned, members, own)
            assert {*heirs.writers, *heirs.doomed} == {*members}, "nobody but the writers has to arrive"
            yield from ways_to_learn(heirs, gone, learned, own)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_survivors_come_to_the_same_writers_in_whatever_order_they_learn_who_is_gone(count: int) -> None:
    members = tuple(range(count))
    tried = 0
    for plan, gone in itertools.product(plans(members), map(set, subsets(members))):
        survivors = set(members) - gone
        ends = {end for own in survivors for end in ways_to_learn(plan, gone, (), own)}
        if survivors:
            (writers,) = ends
            assert set(writers) <= survivors
            left = tuple(member for member in plan.writers if member in survivors)
            assert writers == (left or (min(survivors),))
            tried += 1
    assert tried == 2**count * (2**count - 1)
