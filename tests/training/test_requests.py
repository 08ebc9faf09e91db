"""Requests for a save, as worker 0 hears and answers them."""

from __future__ import annotations

import datetime
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import save_request
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training import requests
from keras_preempt.training.requests import BUCKET_SECONDS, LOCAL_SECONDS, Requests, interval

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

    def call(self) -> int | None:
        with self.news:
            self.calls += 1
            self.news.notify_all()
        return next(self.rounds)

    def emit(self, kind: str, **fields: Any) -> None:
        with self.news:
            self.told.append((kind, fields))
            self.news.notify_all()

    def await_call(self) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.calls > 0, PATIENCE)

    def answers(self) -> list[dict[str, Any]]:
        return [fields for kind, fields in self.told if kind == "answered"]

    def await_answer(self) -> dict[str, Any]:
        with self.news:
            assert self.news.wait_for(self.answers, PATIENCE)
        return self.answers()[-1]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "run")
    store.prepare()
    return store


@pytest.fixture
def job(store: LocalStore) -> Iterator[Job]:
    job = Job(store)
    yield job
    job.requests.stop("the test is over")
    assert "keras_preempt-requests" not in {thread.name for thread in threading.enumerate()}


def await_gone(store: LocalStore) -> None:
    limit = time.monotonic() + PATIENCE
    while (store.path / SAVE_REQUEST).exists():
        assert time.monotonic() < limit
        time.sleep(0.005)  # A file cannot be waited for, only looked at.


def test_a_request_calls_a_round_and_the_save_of_that_answers_it(job: Job) -> None:
    asked, _ = save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer() == {"id": asked.id, "checkpoint": SAVED, "reason": ""}
    assert [kind for kind, _ in job.told] == ["requested", "answered"]
    await_gone(job.store)


def test_a_save_of_an_earlier_state_is_no_answer(job: Job) -> None:
    earlier = time.monotonic()
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.saved(earlier, "step-00000006/00002-0000")
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer()["checkpoint"] == SAVED
    assert len(job.answers()) == 1


def test_it_is_called_again_when_nothing_has_come_of_the_round(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_AGAIN", 0.01)
    save_request.make(job.store, 2, "here")
    with job.news:
        assert job.news.wait_for(lambda: job.calls > 10, PATIENCE)
    assert job.answers() == []


def test_it_is_not_called_again_while_its_save_is_being_written(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_AGAIN", 0.001)
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.captured()
    with job.news:
        before = job.calls
        assert not job.news.wait_for(lambda: job.calls > before + 1, 0.3)  # One may be under way.
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer()["checkpoint"] == SAVED


def test_no_agreement_in_several_rounds_is_answered_as_that(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_AGAIN", 0.01)
    job.rounds = itertools.count()
    save_request.make(job.store, 2, "here")
    answer = job.await_answer()
    assert answer["checkpoint"] is None
    assert "could not agree" in answer["reason"]


def test_a_save_that_fails_is_answered_as_that(job: Job) -> None:
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.saved(time.monotonic(), None)
    assert "has failed" in job.await_answer()["reason"]


def test_a_save_that_makes_way_for_that_of_a_notice_is_answered_with_that_one(job: Job) -> None:
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.leaves = True
    job.requests.saved(time.monotonic(), None)
    job.requests.saved(time.monotonic(), SAVED)
    assert job.await_answer()["checkpoint"] == SAVED


def test_the_end_of_the_fit_answers_what_is_still_asked(job: Job) -> None:
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.stop("ValueError: mine")
    assert job.answers()[0]["reason"] == "the fit has ended before that: ValueError: mine"


def test_a_request_that_was_left_behind_for_an_earlier_start_is_removed_and_not_carried_out(job: Job) -> None:
    save_request.make(job.store, 1, "here")
    await_gone(job.store)
    assert (job.told, job.calls) == ([], 0)
    save_request.make(job.store, 2, "here")
    job.await_call()
    assert [kind for kind, _ in job.told] == ["requested"]


def test_a_request_to_a_later_start_is_left_to_that_one(job: Job) -> None:
    made, _ = save_request.make(job.store, 3, "here")
    job.requests.stop("over")
    job.requests._look()
    assert save_request.read(job.store) == made
    assert job.told == []


def test_a_foreign_file_stays_is_named_once_and_keeps_nobody_from_training(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        (job.store.path / SAVE_REQUEST).write_text("buy milk")
        limit = time.monotonic() + PATIENCE
        while "is ignored, because keras-preempt save did not write it" not in caplog.text:
            assert time.monotonic() < limit
            time.sleep(0.005)
        (job.store.path / SAVE_REQUEST).unlink()
        save_request.make(job.store, 2, "here")
        job.await_call()
    assert caplog.text.count("is ignored, because keras-preempt save did not write it") == 1


def test_a_request_that_cannot_be_removed_is_carried_out_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise StoreUnavailable("no permission")

    monkeypatch.setattr(job.store, "delete", refuse)
    save_request.make(job.store, 2, "here")
    job.await_call()
    job.requests.saved(time.monotonic(), SAVED)
    job.await_answer()
    job.requests.stop("over")
    job.requests._look()
    assert [kind for kind, _ in job.told] == ["requested", "answered"]
    assert f"{SAVE_REQUEST} cannot be removed" in caplog.text


def test_storage_that_fails_is_named_once_and_asked_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Semaphore(0)

    def fail(name: str) -> None:
        asked.release()
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(job.store, "stat", fail)
        for _ in range(5):
            assert asked.acquire(timeout=PATIENCE)
    save_request.make(job.store, 2, "here")
    job.await_call()
    assert caplog.text.count("cannot be looked for") == 1


def test_nothing_is_looked_for_while_the_worker_has_to_leave(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.leaves = True
    looked = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(job.requests, "_look", looked.set)
        assert not looked.wait(0.2)
        job.leaves = False
        assert looked.wait(PATIENCE)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("auto", LOCAL_SECONDS), (None, None), ("30s", 30.0), (datetime.timedelta(minutes=2), 120.0)],
)
def test_the_interval_is_that_of_the_place_or_of_the_user(
    given: Any, seconds: float | None, store: LocalStore
) -> None:
    assert interval(given, store) == seconds


def test_in_a_bucket_it_is_looked_for_once_a_minute() -> None:
    bucket: Any = object()
    assert interval("auto", bucket) == BUCKET_SECONDS == 60


@pytest.mark.parametrize("wrong", [True, 30, "often", "0s", datetime.timedelta(0)])
def test_anything_else_is_refused(wrong: Any, store: LocalStore) -> None:
    with pytest.raises(ValueError, match="Expected save_on_request to be 'auto', a time"):
        interval(wrong, store)
