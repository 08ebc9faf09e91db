"""When a save is due without a notice: requests, as worker 0 hears and answers them, and the user's schedule."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.process import environment
from keras_preempt.training.save import requests
from keras_preempt.training.save.requests import BUCKET_SECONDS, LOCAL_SECONDS, Requests, interval
from keras_preempt.training.save.schedule import Schedule, schedule_from, schedule_of
from tests.checkpoint.builders import new_store
from tests.cluster.small_fit import await_

PATIENCE = 240.0
SAVED = "step-00000007/00002-0001"


class Job:
    """Start 2 of a job whose rounds a test carries out."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.leaves = False
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.calls = 0
        self.rounds = itertools.repeat(0)
        self.news = threading.Condition()
        self.requests = Requests(store, 2, 0.01, self.call, lambda: self.leaves, self.emit)

    def ask(self) -> str:
        """Requests a save, and waits until that has called a round; returns the id of the request."""
        asked, _ = requests.make_request(self.store, 2, "here")
        with self.news:
            assert self.news.wait_for(lambda: self.calls > 0, PATIENCE)
        return asked.id

    def call(self) -> int | None:
        with self.news:
            self.calls += 1
            self.news.notify_all()
        return next(self.rounds)

    def emit(self, kind: str, **fields: Any) -> None:
        with self.news:
            self.told.append((kind, fields))
            self.news.notify_all()

    def answers(self) -> list[dict[str, Any]]:
        return [fields for kind, fields in self.told if kind == "answered"]

    def await_answer(self) -> dict[str, Any]:
        with self.news:
            assert self.news.wait_for(self.answers, PATIENCE)
        return self.answers()[-1]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)


@pytest.fixture
def job(store: LocalStore) -> Iterator[Job]:
    job = Job(store)
    yield job
    job.requests.stop("the test is over")
    assert "keras_preempt-requests" not in {thread.name for thread in threading.enumerate()}


def await_gone(store: LocalStore) -> None:
    await_(lambda: not (store.path / SAVE_REQUEST).exists())


def test_a_request_calls_a_round_whose_save_answers_it_and_none_of_an_earlier_state(job: Job) -> None:
    earlier = time.monotonic()
    asked = job.ask()
    job.requests.saved(earlier, "step-00000006/00002-0000")
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer() == {"id": asked, "checkpoint": SAVED, "reason": ""}
    assert [kind for kind, _ in job.told] == ["requested", "answered"]
    await_gone(job.store)


def test_it_is_called_again_when_nothing_came_of_the_round_and_no_agreement_in_several_is_answered_as_that(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_RETRY_SECONDS", 0.01)
    job.ask()
    with job.news:
        assert job.news.wait_for(lambda: job.calls > 10, PATIENCE)
    assert job.answers() == []
    job.rounds = itertools.count()  # Each call now comes in another round.
    answer = job.await_answer()
    assert answer["checkpoint"] is None
    assert "could not agree" in answer["reason"]


def test_it_is_not_called_again_while_its_save_is_written(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_RETRY_SECONDS", 0.001)
    job.ask()
    job.requests.captured()
    with job.news:
        before = job.calls
        assert not job.news.wait_for(lambda: job.calls > before + 1, 0.3)  # One may be under way.
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer()["checkpoint"] == SAVED


@pytest.mark.parametrize("makes_way", [False, True], ids=["fails", "makes way for that of a notice"])
def test_a_save_that_fails_is_answered_as_that_unless_another_comes(job: Job, makes_way: bool) -> None:
    job.ask()
    job.leaves = makes_way
    job.requests.saved(time.monotonic(), None)
    job.requests.saved(time.monotonic(), SAVED)
    answer = job.await_answer()
    assert answer["checkpoint"] == (SAVED if makes_way else None)
    assert ("has failed" in answer["reason"]) != makes_way


def test_the_end_of_the_fit_answers_what_is_still_asked(job: Job) -> None:
    job.ask()
    job.requests.stop("ValueError: mine")
    assert job.answers()[0]["reason"] == "the fit has ended before that: ValueError: mine"


def test_a_request_that_was_left_behind_for_an_earlier_start_is_removed_and_not_carried_out(job: Job) -> None:
    requests.make_request(job.store, 1, "here")
    await_gone(job.store)
    assert (job.told, job.calls) == ([], 0)
    job.ask()
    assert [kind for kind, _ in job.told] == ["requested"]


def test_a_request_to_a_later_start_is_left_to_that_one(job: Job) -> None:
    made, _ = requests.make_request(job.store, 3, "here")
    job.requests.stop("over")
    job.requests._look()
    assert requests.pending_request(job.store) == made
    assert job.told == []


def test_a_foreign_file_stays_is_named_once_and_keeps_nobody_from_training(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    told = "is ignored, because keras-preempt save did not write it"
    (job.store.path / SAVE_REQUEST).write_text("buy milk")
    await_(lambda: told in caplog.text)
    (job.store.path / SAVE_REQUEST).unlink()
    job.ask()
    assert caplog.text.count(told) == 1


def test_a_request_that_cannot_be_removed_is_carried_out_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job.store, "delete", mock.Mock(side_effect=StoreUnavailable("no permission")))
    job.ask()
    job.requests.saved(time.monotonic(), SAVED)
    job.await_answer()
    job.requests.stop("over")
    job.requests._look()
    assert [kind for kind, _ in job.told] == ["requested", "answered"]
    assert f"{SAVE_REQUEST} cannot be removed" in caplog.text


def test_storage_that_fails_is_named_once_and_asked_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = mock.Mock(side_effect=StoreUnavailable("gone"))
    with monkeypatch.context() as patch:
        patch.setattr(job.store, "stat", asked)
        await_(lambda: asked.call_count >= 5)
    job.ask()
    assert caplog.text.count("cannot be looked for") == 1


def test_nothing_is_looked_for_while_the_worker_leaves(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.leaves = True
    looked = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(job.requests, "_look", looked.set)
        assert not looked.wait(0.2)
        job.leaves = False
        assert looked.wait(PATIENCE)


def test_the_interval_is_that_of_the_place_or_of_the_user(store: LocalStore) -> None:
    bucket = GcsStore("gs://bucket/run")
    assert [interval("auto", store), interval("auto", bucket)] == [LOCAL_SECONDS, BUCKET_SECONDS]
    assert BUCKET_SECONDS == 60
    given = (None, "30s", datetime.timedelta(minutes=2))
    assert [interval(each, store) for each in given] == [None, 30.0, 120.0]


@pytest.mark.parametrize("wrong", [True, 30, "often", "0s", datetime.timedelta(0)])
def test_anything_else_is_refused(wrong: Any, store: LocalStore) -> None:
    with pytest.raises(ValueError, match="Expected save_on_request to be 'auto', a time"):
        interval(wrong, store)


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        (None, Schedule()),
        (100, Schedule(steps=100)),
        ("epoch", Schedule(epochs=True)),
        ("10min", Schedule(seconds=600)),
        ("90s", Schedule(seconds=90)),
        ("1.5 h", Schedule(seconds=5400)),
        ("1h 2m3s", Schedule(seconds=3723)),
        (datetime.timedelta(hours=2), Schedule(seconds=7200)),
    ],
)
def test_every_way_to_say_it_is_understood(given: object, schedule: object) -> None:
    assert schedule_from(given) == schedule


@pytest.mark.parametrize(
    "given", [0, -1, True, 1.5, "", "epochs", "10", "ten minutes", "0s", datetime.timedelta(0), [], b"epoch"]
)
def test_anything_else_is_refused_with_what_was_expected_and_received(given: object) -> None:
    with pytest.raises(ValueError, match="Expected save_every") as refused:
        schedule_from(given)
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
    assert schedule_of("epoch") == Schedule(epochs=True)
    monkeypatch.setenv(environment.SAVE_EVERY, "")
    assert schedule_of("epoch") == Schedule(epochs=True)
    for text, expected in (
        ("50", Schedule(steps=50)),
        ("epoch", Schedule(epochs=True)),
        ("10min", Schedule(seconds=600.0)),
    ):
        monkeypatch.setenv(environment.SAVE_EVERY, text)
        assert schedule_of(None) == schedule_of(7) == expected
    with pytest.raises(ValueError, match="Expected save_every"):
        schedule_of("wrong in the script")
    monkeypatch.setenv(environment.SAVE_EVERY, "0")
    with pytest.raises(ValueError, match=f"{environment.SAVE_EVERY}: Expected save_every"):
        schedule_of(None)
