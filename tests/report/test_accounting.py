from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.report.account import Account, account
from keras_preempt.report.events import KINDS
from keras_preempt.report.page import STYLE, page
from keras_preempt.report.tables import account_as_json
from keras_preempt.report.wording import lost_steps, summary
from keras_preempt.report.worker_run import IDLE, MEANINGS, TRAIN, UNACCOUNTED, UNREPORTED, End
from tests.report import story as length
from tests.report.story import NOW, Story


def accounted(story: Story, now: float | None = None, **options: Any) -> Account:
    found = account(story.events, (), now, **options)
    assert found is not None
    assert_every_second_is_accounted_for(found)
    return found


def assert_every_second_is_accounted_for(found: Account) -> None:
    for worker in found.workers:
        for span, following in zip(worker.spans, worker.spans[1:], strict=False):
            assert span.ended == following.began
        assert all(span.ended > span.began and span.what in MEANINGS for span in worker.spans)
        total = sum(worker.seconds(what) for what in MEANINGS)
        assert total == pytest.approx(worker.wall)
        assert 0 <= worker.goodput <= 1


def spent(found: Account, member: int = 0) -> dict[str, float]:
    worker = found.workers[member]
    return {what: seconds for what in MEANINGS if (seconds := worker.seconds(what))}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_second_of_a_preempted_run_is_accounted_for(workers: int) -> None:
    story = Story(workers).begin().train(10, 20.0).preempt().pause(7.0)
    found = accounted(story.begin(restored=11).train(5, 10.0).save(0.5).train(5, 10.0).finish())
    for member in range(workers):
        assert spent(found, member) == pytest.approx(
            {
                "train": 40.0,
                "compile": 2 * length.COMPILING,
                "start-up": 2 * length.STARTING,
                "restore": length.READING + length.RESTORING,
                "replay": length.REPLAYING,
                "hold": 2 * length.HOLDING,
                "save": 2 * length.SAVING + 0.5,
                "leave": 2 * (length.LEAVING + length.DYING),
                "idle": 7.0,
            }
        )
    assert found.goodput == pytest.approx(40.0 / found.workers[0].wall)
    assert [start.end for start in found.starts] == [End.PREEMPTED, End.FINISHED]
    assert found.starts[0].why.startswith("SIGTERM to w0")
    assert (found.step, found.steps_run, found.lost, found.lost_exactly) == (22, 22, 0, True)
    assert [save.step for save in found.saves] == [11, 17, 22]
    assert len(found.notices) == workers
    assert found.gaps == ()


def test_without_a_launcher_a_process_ends_with_its_fit_and_the_rest_is_idle() -> None:
    story = Story(launcher=False).begin().preempt().pause(7.0).begin(restored=1).finish()
    found = accounted(story)
    assert spent(found)["leave"] == pytest.approx(2 * length.LEAVING)
    assert spent(found)["idle"] == pytest.approx(7.0 + length.DYING)


def test_a_second_fit_of_one_process_has_the_script_before_it_as_start_up() -> None:
    story = Story(launcher=False).begin().finish()
    first_end, started = story.at - length.DYING, story.events[0]["started_at"]
    story.begin(restored=1)
    for event in story.events:
        if event["event"] == "start":
            event["started_at"] = started
    found = accounted(story.finish())
    assert IDLE not in spent(found)
    second = found.starts[1].workers[0]
    assert second.began == first_end
    assert second.seconds("start-up") == pytest.approx(length.STARTING + length.DYING)


def test_everything_that_time_is_spent_on_has_a_colour_on_the_page() -> None:
    assert [what for what in MEANINGS if f"rect.{what} " not in STYLE and f"rect.{what}," not in STYLE] == []


# -- Lost steps ---------------------------------------------------------------------------------------


def test_steps_after_the_last_save_of_a_crash_are_lost() -> None:
    story = Story(2).begin().train(9, 9.0).save().train(5, 5.0).fail()
    found = accounted(story.begin(restored=10).train(9, 9.0).finish())
    first = found.starts[0]
    assert (first.last_step, first.lost, first.lost_exactly) == (15, 5, True)
    assert "continued from step 10, and this one had done 15" in first.lost_why
    assert first.why == "w0: ValueError: no"
    assert (found.steps_run, found.lost, found.step) == (25, 5, 20)
    assert "steps: 25 run, 20 kept, 5 lost" in summary(found)
    assert spent(found)["recomputed"] == pytest.approx(5.0)
    assert found.workers[0].useful == pytest.approx(9.0 + 9.0)


def test_a_start_from_an_older_checkpoint_loses_steps_of_several_starts() -> None:
    story = Story().begin().train(9, 9.0).preempt()
    story.begin(restored=10).train(9, 9.0).preempt()
    story.begin(restored=4).train(25, 25.0).finish()
    found = accounted(story)
    assert [start.lost for start in found.starts] == [6, 10, 0]
    assert (found.steps_run, found.lost, found.step) == (10 + 10 + 26, 16, 30)


def test_the_lost_steps_of_a_killed_worker_are_reported_as_unknown() -> None:
    story = Story().begin().train(9, 9.0).save().train(5, 5.0).kill()
    found = accounted(story.begin(restored=10).finish())
    first = found.starts[0]
    assert first.end is End.KILLED
    assert first.why == "w0 by SIGKILL"
    assert not first.lost_exactly
    assert not found.lost_exactly
    assert "is not recorded" in first.lost_why
    assert found.workers[0].useful == pytest.approx(9.0)  # Until the save; nobody knows of the rest.


def test_the_lost_steps_of_a_killed_worker_are_bounded_where_steps_decide_when_to_save() -> None:
    story = Story(ahead=20).begin().train(9, 9.0).save().train(5, 5.0).kill()
    story.begin(restored=10).train(9, 9.0).save().train(5, 5.0).kill()
    found = accounted(story.begin(restored=10).finish())
    first, second, _ = found.starts
    assert lost_steps(first).startswith("start 1 lost at most 20 steps: ")
    assert lost_steps(second).startswith("start 2 lost 10 to 30 steps: ")
    assert (found.lost, found.lost_at_most) == (10, 50)
    assert "10 to 50 lost" in "".join(summary(found))


def test_lost_steps_of_a_killed_worker_are_known_where_its_launcher_has_a_record_of_them() -> None:
    story = Story().begin().train(9, 9.0).save().train(5, 5.0).kill(step_known=True)
    found = accounted(story.begin(restored=10).finish())
    assert (found.lost, found.lost_exactly) == (5, True)


def test_a_peer_of_a_killed_worker_shows_how_far_both_had_come() -> None:
    story = Story(2, launcher=False).begin().train(9, 9.0).save().train(5, 5.0)
    killed_at = len(story.events)
    story.fail("UnavailableError", origin="the loss of a worker")
    story.events[killed_at:] = [event for event in story.events[killed_at:] if event["member"] == 1]
    found = accounted(story.pause(3.0).begin(restored=10).finish())
    first = found.starts[0]
    assert first.end is End.SILENT
    assert (first.lost, first.lost_exactly) == (5, True)
    assert UNREPORTED in spent(found, 0)
    assert UNREPORTED not in spent(found, 1)


def test_a_preemption_that_could_not_be_saved_loses_its_steps() -> None:
    story = Story().begin().train(9, 9.0).save().train(5, 5.0).preempt(saved=False)
    assert accounted(story).lost == 5  # As things stand: a start now would have to run them again.
    assert "a start now would continue from step 10" in accounted(story).starts[0].lost_why
    found = accounted(story.begin(restored=10).finish())
    assert found.starts[0].lost == 5
    assert "NOT saved" in found.starts[0].why


def test_a_start_that_ends_before_its_first_step_changes_nothing() -> None:
    story = Story().begin().train(9, 9.0).preempt()
    story.number += 1
    story.tell("start", members=1, started_at=story.at - 1.0, began_at=story.at - 0.5)
    found = accounted(story.fail().begin(restored=10).finish())
    assert found.starts[1].first_step is None
    assert (found.lost, found.lost_exactly) == (0, True)


# -- While it runs ------------------------------------------------------------------------------------


def test_a_run_without_an_end_is_accounted_for_until_now_as_far_as_its_process_may_be_there() -> None:
    story = Story(launcher=False).begin().train(9, 9.0).save()
    saved = story.at
    story.train(0, 30.0)
    running = accounted(story, story.at, is_alive=lambda process: True)
    assert running.starts[0].end is End.RUNNING
    assert spent(running)[TRAIN] == pytest.approx(39.0)
    assert (running.lost, running.lost_exactly) == (0, True)
    assert running.gaps == ()
    gone = accounted(story, story.at + 1e6, is_alive=lambda process: False)
    assert gone.starts[0].end is End.SILENT
    assert gone.ended == saved
    assert not gone.lost_exactly
    elsewhere = accounted(story, story.at + 60.0)
    assert elsewhere.starts[0].end is End.RUNNING
    assert "w0: no end is recorded" in elsewhere.gaps[0]
    assert "--over" in elsewhere.gaps[0]
    over = accounted(story)
    assert over.starts[0].end is End.SILENT
    assert over.gaps == ()


# -- Gaps ---------------------------------------------------------------------------------------------


def without(story: Story, **field: Any) -> Story:
    """Leaves out the events in which a field has a value."""
    story.events = [event for event in story.events if not field.items() <= event.items()]
    return story


def test_a_worker_without_events_is_named() -> None:
    story = without(Story(3).begin().finish(), member=1)
    assert accounted(story).gaps == ("start 1: no events of w1, out of 3 workers",)


@pytest.mark.parametrize("kind", ["ready", "first_step"])
def test_time_before_a_missing_event_is_unaccounted_for_and_reported(kind: str) -> None:
    found = accounted(without(Story().begin().train(9, 9.0).finish(), event=kind))
    assert spent(found)[UNACCOUNTED] > 0
    assert any("events are missing" in gap for gap in found.gaps)


def test_a_start_without_its_first_event_begins_with_what_is_known_and_is_reported() -> None:
    found = accounted(without(Story().begin().train(9, 9.0).finish(), event="start"))
    assert spent(found)[TRAIN] == pytest.approx(9.0)
    assert found.gaps == ("start 1, w0: events are missing, so that it is not known when it began",)


def test_no_events_give_no_account() -> None:
    assert account([], (), NOW) is None
    assert account([{"event": "start", "time": 1.0, "incarnation": 1, "member": "w0"}], (), NOW) is None


_times = st.floats(0, 2e9) | st.floats(NOW, NOW + 100)
_plain = st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.text()
_junk = _plain | _times | st.lists(st.text(), max_size=2)
_FIELDS = (
    *("started_at", "began_at", "read_at", "read_seconds", "seconds", "input_seconds", "before", "ready_at"),
    *("step", "members", "goes_on", "background", "code", "saved", "reason", "origin", "attempt", "missing"),
    *("skipped", "checkpoint", "process", "received_at", "deadline", "source"),
)
_events = st.builds(
    lambda fields, **event: {**fields, **event},
    fields=st.dictionaries(st.sampled_from(_FIELDS), _junk, max_size=8),
    event=st.sampled_from(KINDS),
    time=_times,
    member=st.integers(0, 2) | _junk,
    incarnation=st.integers(1, 4),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_events, max_size=12), st.none() | _times, st.sampled_from([None, False, True]))
def test_whatever_the_events_say_spans_never_overlap_and_sum_up_to_the_wall_time(
    events: list[dict[str, Any]], now: float | None, alive: bool | None
) -> None:
    events.sort(key=lambda event: event["time"])
    found = account(events, ["a gap"], now, lambda process: alive)
    if found is not None:
        assert_every_second_is_accounted_for(found)
        assert found.steps_run >= found.lost >= 0
        json.loads(json.dumps(account_as_json(found, "run"), allow_nan=False))
        assert page(found, "run").endswith("</html>\n")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_run_with_any_of_its_lines_missing_is_reported_all_the_same(data: st.DataObject) -> None:
    story = Story(2).begin().train(9, 9.0).save().train(3, 3.0).preempt().pause(1.0)
    story.begin(restored=13).train(5, 5.0).kill().begin(restored=13).train(5, 5.0).finish()
    kept = data.draw(st.lists(st.booleans(), min_size=len(story.events), max_size=len(story.events)))
    story.events = [event for event, keep in zip(story.events, kept, strict=True) if keep]
    found = account(story.events, (), None)
    if found is not None:
        assert_every_second_is_accounted_for(found)
