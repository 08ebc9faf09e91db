"""Goodput and badput: every second has one cause, and every lost second one interruption."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.report.account import Account, account
from keras_preempt.report.goodput import CAUSES, MEANINGS, PRODUCTIVE, badput
from keras_preempt.report.tables import times
from keras_preempt.report.worker_run import HANG, RECOMPUTED, TRAIN, End
from keras_preempt.report.worker_run import MEANINGS as SPANS
from tests.report.story import COMPILING, DYING, LEAVING, READING, REPLAYING, RESTORING, STARTING, Story


def accounted(story: Story, now: float | None = None, **options: Any) -> Account:
    found = account(story.events, (), now, **options)
    assert found is not None
    return found


def test_each_thing_that_time_is_spent_on_is_productive_or_has_one_cause() -> None:
    assert sorted([TRAIN, *(part for parts in CAUSES.values() for part in parts)]) == sorted(SPANS)
    assert [PRODUCTIVE, *CAUSES] == list(MEANINGS)


def test_a_hang_costs_the_time_from_the_last_progress_to_the_end_of_all_processes() -> None:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0)
    found = accounted(story.hang(300.0, member=1).pause(4.0).begin(restored=10).train(5, 5.0).finish())
    first = found.starts[0]
    assert (first.end, first.why) == (End.HUNG, "w1 no progress for 300 s in train")
    assert found.badput["hang"] == 2 * 300.0
    assert [span.what for span in first.workers[0].spans][-2:] == [RECOMPUTED, HANG]
    opening = STARTING + READING + RESTORING + REPLAYING + COMPILING
    assert found.badput["recomputed steps"] == 2 * 5.0
    assert first.lost_seconds == 5.0 + 300.0 + 4.0 + opening


def test_the_steps_before_a_hang_took_no_part_of_its_time() -> None:
    """Of 5 steps in 5 seconds, 2 are kept: by a checkpoint that no event tells of."""
    story = Story().begin().train(9, 9.0).save().train(5, 5.0).hang(300.0)
    found = accounted(story.begin(restored=12).train(5, 5.0).finish())
    assert found.starts[0].lost == 3
    assert found.badput["recomputed steps"] == 3.0
    assert found.badput["hang"] == 300.0


def test_a_start_that_never_trains_belongs_to_the_interruption_before_it() -> None:
    story = Story().begin().train(9, 9.0).fail().pause(3.0)
    story.number += 1
    story.tell("start", members=1, started_at=story.at, began_at=story.at)
    story.at += 2.0
    found = accounted(story.fail().pause(1.0).begin(restored=1).train(1, 1.0).finish())
    assert found.starts[0].lost_seconds == 9.0 + LEAVING + DYING + 3.0 + 2.0 + LEAVING + DYING
    assert found.starts[1].lost_seconds == 1.0 + STARTING + READING + RESTORING + REPLAYING + COMPILING


_time = st.floats(0.0, 1e6)
_start = st.tuples(
    st.lists(st.tuples(st.integers(0, 1000), _time, st.booleans()), max_size=4),
    st.sampled_from(["preempt", "not saved", "kill", "kill, step known", "fail", "hang"]),
    _time,
    st.floats(0.0, 1.0),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 2), st.lists(_start, max_size=5), st.booleans())
def test_productive_time_and_badput_are_the_wall_time_and_so_are_interruptions(
    workers: int, starts: list[Any], finishes: bool
) -> None:
    """To the last bit: times of this century have room for sums of their differences."""
    story, saved = Story(workers), 0
    for trained, end, away, part in starts:
        story.begin(restored=saved or None)
        for steps, seconds, saves in trained:
            story.train(steps, seconds)
            if saves:
                story.save(min(seconds, 0.5))
                saved = story.step
        if end == "preempt":
            saved = story.preempt().step
        elif end == "not saved":
            story.preempt(saved=False)
        elif end.startswith("kill"):
            story.train(0, part * away).kill(step_known="known" in end)
        elif end == "fail":
            story.fail()
        else:
            story.hang(part * away, member=workers - 1)
        story.pause(away)
    if finishes or not starts:
        story.begin(restored=saved or None).train(3, 3.0).finish()
    found = accounted(story)
    for worker in found.workers:
        assert worker.useful + sum(badput([worker]).values()) == worker.wall
    assert found.productive + sum(found.badput.values()) == found.wall
    # What no interruption cost: the first start, pauses for saves in between, and the end of a start that finished.
    others = 0.0
    for run in (run for start in found.starts for run in start.workers):
        training = [index for index, span in enumerate(run.spans) if span.what in (TRAIN, RECOMPUTED)]
        first, last = (training[0], training[-1]) if training else (len(run.spans), len(run.spans) - 1)
        if run.incarnation == 1:
            others += sum(span.seconds for span in run.spans[:first])
        others += sum(run.spans[index].seconds for index in range(first, last) if index not in training)
        if run.end is End.FINISHED:
            others += sum(span.seconds for span in run.spans[last + 1 :])
    lost = sum(start.lost_seconds for start in found.starts)
    assert workers * lost + others == sum(found.badput.values())
    rows = {row[0]: row for row in times(found).rows}
    assert {PRODUCTIVE, "wall time"} <= set(rows)
    assert {row for row in rows if not row.startswith(" ")} - {"wall time"} <= set(MEANINGS)
