from __future__ import annotations

from typing import Any

import pytest

from keras_preempt.report.account import account
from keras_preempt.report.events import in_order
from keras_preempt.report.worker_run import TRAIN, End
from tests.report.story import Story


def told(workers: int = 1) -> Story:
    story = Story(workers).begin().train(10, 20.0).preempt().pause(7.0)
    return story.begin(restored=11).train(5, 10.0).save(0.5).train(5, 10.0).finish()


def ordered(story: Story) -> tuple[list[dict[str, Any]], list[str]]:
    gaps: list[str] = []
    return in_order(sorted(story.events, key=lambda event: event["time"]), gaps.append), gaps


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("behind", [40.0, 120.0, 86_400.0])
def test_a_start_whose_clock_is_behind_is_there_with_all_its_time(behind: float, workers: int) -> None:
    right = account(told(workers).events, (), None)
    events, gaps = ordered(told(workers).clock_behind(behind, 2))
    found = account(events, gaps, None)
    assert right is not None
    assert found is not None
    assert [start.end for start in found.starts] == [End.PREEMPTED, End.FINISHED]
    assert (found.step, found.steps_run, found.lost) == (right.step, right.steps_run, 0)
    for member in range(workers):
        for number, start in enumerate(found.starts):
            spent, expected = start.workers[member], right.starts[number].workers[member]
            assert spent.seconds(TRAIN) == pytest.approx(expected.seconds(TRAIN))
    assert len(gaps) == workers
    assert "start 2, w0: the clock of its machine was" in gaps[0]


@pytest.mark.parametrize("ahead", [0.0, 120.0])
def test_nothing_is_moved_where_no_clock_is_behind(ahead: float) -> None:
    story = told().clock_behind(-ahead, 2)
    events, gaps = ordered(story)
    assert events == story.events
    assert gaps == []


def test_a_worker_that_was_cut_off_and_tells_its_end_late_moves_nothing() -> None:
    story = told()
    story.events.append({"event": "end", "time": story.at, "member": 0, "incarnation": 1, "reason": "fenced"})
    assert ordered(story)[1] == []


@pytest.mark.parametrize(
    "event",
    [
        {"passed": "no list"},
        {"passed": [None, [], ["x", 1], [3.0, 1]]},
        {"started_at": "x", "deadline": None},
        {"member": "x"},
    ],
)
def test_whatever_an_event_says_it_is_moved_or_left(event: dict[str, Any]) -> None:
    story = told().clock_behind(120.0, 2)
    for each in story.events:
        each.update(event)
    assert len(ordered(story)[0]) == len(story.events)
