"""How fast a run went, and what happened in it, from events whose times are known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import journal
from keras_preempt.report.events import MOST_MARKS, EventLog
from keras_preempt.report.loading import Loader
from keras_preempt.report.page import page
from keras_preempt.report.tables import account_as_json, places
from keras_preempt.report.throughput import Sample, Stretch, samples, split, stretches
from tests.report.record import HOST, RECORDED
from tests.report.story import NOW, Story
from tests.report.test_accounting import accounted
from tests.report.test_events import Lines

FORMATS = Path(__file__).parents[1] / "formats"


def event(kind: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": NOW + at, "member": 0, "incarnation": 1, **fields}


def test_the_speed_between_two_marks_is_the_steps_by_the_seconds() -> None:
    # Ten seconds at 2 steps a second, a validation of 5 s, and 4 s at 10 steps a second, up to a hold of 1 s.
    told = [
        event("ready", 0, step=0),
        event("first_step", 3, step=1, passed=[[NOW + 1, 0]]),
        event("hold", 23, step=61, seconds=0.75, before=0.25, passed=[[NOW + 13, 21], [NOW + 18, 21]]),
        event("finish", 25, step=61),
        event("end", 60, step=61),
    ]
    found = samples(told)
    assert [sample.at - NOW for sample in found] == [3, 13, 18, 22, 23, 25]
    assert [stretch.speed for stretch in stretches(found)] == [2, 0, 10, 0, 0]


def test_a_save_in_the_background_is_a_pause_of_known_length() -> None:
    found = accounted(Story().begin().train(8, 4.0).save(0.5).train(9, 3.0).finish())
    assert [stretch.speed for stretch in stretches(found.starts[0].reference.samples)[:3]] == [2, 0, 3]
    # 17 steps in 7 s of training: the save is none of it.
    assert found.speed == pytest.approx(17 / 7)


@pytest.mark.parametrize(
    "passed",
    [None, 3, [3], [[1]], [["a", "b"]], [[NOW, -1]], [[1e30, 3]], [[NOW + 4, True]], [[NOW + 4, 1e3]]],
)
def test_marks_that_are_none_are_left_out(passed: Any) -> None:
    told = [event("first_step", 3, step=1), event("finish", 5, step=5, passed=passed)]
    assert samples(told) == (Sample(NOW + 3, 1), Sample(NOW + 5, 5))


def test_marks_of_a_clock_that_goes_back_never_make_a_negative_speed() -> None:
    told = [
        event("first_step", 3, step=1),
        event("finish", 9, step=30, passed=[[NOW + 5, 20], [NOW + 4, 25], [NOW + 6, 10], [NOW + 5, 28]]),
    ]
    assert all(stretch.speed >= 0 for stretch in stretches(samples(told)))


def test_a_stretch_is_cut_where_steps_began_to_be_lost() -> None:
    stretch = Stretch(NOW, NOW + 10, 100, 200)
    assert split(stretch, 150) == (Stretch(NOW, NOW + 5, 100, 150), Stretch(NOW + 5, NOW + 10, 150, 200))
    assert split(stretch, 100) == split(stretch, 250) == split(stretch, None) == (stretch,)


def test_what_is_remembered_is_told_once_with_the_next_event_and_stays_small() -> None:
    now = iter(range(10 * MOST_MARKS))
    log, sink = EventLog(0, clock=lambda: float(next(now))), Lines()
    log.open(1, sink)
    for step in range(5 * MOST_MARKS):
        log.mark(step)
    assert sink.data == [], "nothing is written for it"
    log.emit("hold", step=1)
    log.emit("finish", step=1)
    first, second = sink.data
    assert b'"passed":[[0.0,0],' in first
    assert first.count(b"],[") < MOST_MARKS
    assert f"{5 * MOST_MARKS - 1}]]".encode() in first, "the last one is there"
    assert b"passed" not in second


def test_a_real_run_tells_its_speed_its_hosts_and_its_versions() -> None:
    found = Loader(open_store(str(RECORDED)), over=True).load()
    assert found.speed is not None
    (row,) = places(found).rows
    assert row[:3] == [HOST, "w0-w1", "1-4"]
    assert all(name in row[3] for name in ("python 3.", "keras_preempt ", "keras 3.", "tensorflow 2."))
    told = account_as_json(found, "run")
    assert told["starts"][0]["hosts"] == {"0": HOST, "1": HOST}
    for start, each in zip(found.starts, told["starts"], strict=True):
        steps = [step for _, step in each["course"]]
        assert steps == sorted(steps)
        # Each epoch is of 44 steps and has a validation, where the curve is flat for a while.
        boundaries = [step for step in range(44, 352, 44) if each["first_step"] < step < each["last_step"]]
        assert {step for step, after in itertools.pairwise(steps) if step == after} >= set(boundaries)
        assert start.reference.host == HOST


@pytest.mark.parametrize(
    "run", sorted(path for path in FORMATS.glob("format-1*") if path.is_dir()), ids=lambda run: run.name
)
def test_runs_of_an_earlier_release_are_read_without_versions(run: Path) -> None:
    found = Loader(open_store(str(run)), over=True).load()
    (row,) = places(found).rows
    assert row[3] == "?"
    assert "What happened" in page(found, "run")


def test_everything_that_happened_is_told_once_and_in_order() -> None:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0).kill(step_known=True).pause(3.0)
    told = journal.entries(accounted(story.begin(restored=10).train(5, 5.0).preempt()))
    assert [entry.words for entry in told] == [
        "start 1: 2 workers",
        "start 1 trains from step 0",
        "step 10 saved in 0.50 s",
        "w0 killed by SIGKILL",
        "w1 killed by SIGKILL",
        "start 1 killed: w0 by SIGKILL; w1 by SIGKILL; steps lost: 5",
        "start 2: 2 workers",
        "start 2 trains from step 10, restored from step-00000010/00001-9999",
        "notice: SIGTERM to w0 (signal)",
        "notice: SIGTERM to w1 (signal)",
        "step 16 saved in 3.00 s",
        "start 2 preempted: SIGTERM to w0; SIGTERM to w1; saved at step 16",
    ]
    assert len({entry.key for entry in told}) == len(told)


def test_saves_in_a_row_are_one_line_of_the_page_and_those_that_are_referred_to_stay_alone() -> None:
    story = Story(2).begin()
    for _ in range(45):
        story.train(10, 10.0).save(0.5)
    found = accounted(story.train(5, 5.0).fail().begin(restored=451).finish())
    shown = page(found, "run")
    _, _, events = shown.partition("<h2>What happened</h2>")
    folded, _, after = events.partition("<summary>")[2].partition("</details>")
    assert "saved: 44 times, about every 10.5 s; the last one: step 441 saved in 0.50 s</summary>" in folded
    assert folded.count('<li id="save-') == 44
    assert "step 451 saved" in after, "the lost steps begin there"
    assert "<details>" not in after


def test_a_long_run_keeps_its_ends_and_what_is_referred_to() -> None:
    story = Story().begin()
    for _ in range(2 * journal.MOST):
        story.train(1, 1.0).save(0.1)
    told = journal.entries(accounted(story.finish()))
    kept = journal.shortened(told, {"save-1-2"})
    assert len(kept) == journal.MOST
    assert {"start-1", "train-1", "end-1", "save-1-2"} <= {entry.key for entry in kept}
    assert "save-1-3" not in {entry.key for entry in kept}
