"""What Python would drop while a notice is acted on waits until the checkpoint is committed: it may take a minute."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from keras_preempt.backend import pipelines
from tests.cluster.noticed_fit import NoticedFit, sigterm

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture
def collections() -> Iterator[list[float]]:
    """When garbage is collected, which is often."""
    times: list[float] = []

    def note(phase: str, info: dict[str, int]) -> None:
        times.append(time.time())

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(100, 1, 1)
    yield times
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)


def many_objects() -> list[list[int]]:
    return [[number] for number in range(1000)]


def test_no_garbage_is_collected_from_a_notice_until_its_checkpoint_is_committed(
    job: NoticedFit, collections: list[float]
) -> None:
    def struck() -> None:
        sigterm()
        job.await_told("notice")
        many_objects()

    assert job.fit({(1, 2): struck}, on_save=many_objects).ended == "Preempted"
    (notice,), (commit,) = job.told("notice"), job.told("commit")
    assert not [each for each in collections if notice["time"] <= each <= commit["time"]]
    assert gc.isenabled()
    assert job.fit().ended == "finished"
    assert [each for each in collections if each > commit["time"]]


def test_garbage_is_collected_again_while_training_goes_on_after_a_save(
    job: NoticedFit, collections: list[float]
) -> None:
    def saved() -> None:
        job.await_told("commit")
        assert gc.isenabled()

    outcome = job.fit({(0, 2): sigterm, (1, 2): saved}, termination={"grace_period": 3600.0})
    assert outcome.ended == "finished"
    assert gc.isenabled()


def test_a_save_keeps_no_iterator_of_its_epoch(job: NoticedFit) -> None:
    """The next save would drop it: two processes on a busy machine have waited 7 and 17 s for that."""
    drawn_from: list[weakref.ref[object]] = []

    def saved() -> None:
        job.await_told("commit")
        drawn_from.extend(map(weakref.ref, pipelines.iterators()))

    def next_epoch() -> None:
        gc.collect()
        still_there.extend(each() for each in drawn_from)

    still_there: list[object] = []
    actions = {(0, 2): sigterm, (0, 5): saved, (1, 1): next_epoch}
    assert job.fit(actions, termination={"grace_period": 3600.0}).ended == "finished"
    assert [commit["step"] for commit in job.told("commit")] == [3, 18]
    assert still_there
    assert not any(still_there)
