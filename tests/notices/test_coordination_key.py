from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY
from keras_preempt.notices import Notice
from keras_preempt.notices.coordination_key import CoordinationKeyNotices, task_named_by
from tests.agreement.memory_coordinator import MemoryCoordinator, MemoryService
from tests.notices.ear import Ear

Listen = Callable[[MemoryCoordinator], CoordinationKeyNotices]


@pytest.fixture
def listen(ear: Ear) -> Iterator[Listen]:
    """Starts a source; none of them leaves a thread."""
    sources: list[CoordinationKeyNotices] = []

    def start(coordinator: MemoryCoordinator) -> CoordinationKeyNotices:
        sources.append(CoordinationKeyNotices(coordinator, ear.notice))
        sources[-1].start()
        return sources[-1]

    yield start
    for source in sources:
        source.stop()
    for thread in threading.enumerate():
        if thread.name == "keras_preempt-notice-key":
            thread.join(0.5)  # on its way out


def test_tensorflows_key_is_a_notice_that_names_the_task_and_no_other(listen: Listen, ear: Ear) -> None:
    coordinator, _ = MemoryService(2).coordinators()
    listen(coordinator)
    before = time.time()
    coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:1")
    notice = ear.wait()
    assert notice.source == "coordination key"
    assert before <= notice.received_at <= time.time()
    assert task_named_by(notice) == "/job:worker/task:1"
    assert task_named_by(Notice("signal", "/job:worker/task:1", 0.0)) is None


@pytest.mark.parametrize("lost", [False, True])
def test_stop_ends_the_wait_delivers_nothing_and_leaves_no_key(lost: bool, listen: Listen, ear: Ear) -> None:
    service = MemoryService(1)
    source = listen(service.coordinators()[0])
    if lost:
        service.lose()
    source.stop()
    source.stop()
    assert ear.notices == []
    assert lost or service.keys() == []


def test_a_member_that_stops_takes_no_notice_from_the_others(listen: Listen, ear: Ear) -> None:
    first, second = MemoryService(2).coordinators()
    one, _ = listen(first), listen(second)
    one.stop()
    assert ear.notices == []
    first.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:1")
    assert ear.wait().reason.endswith("/job:worker/task:1")


def test_all_members_may_stop_at_once(listen: Listen) -> None:
    sources = [listen(coordinator) for coordinator in MemoryService(4).coordinators()]
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(CoordinationKeyNotices.stop, sources))


def test_a_notice_that_was_there_before_is_heard_and_stays(listen: Listen, ear: Ear) -> None:
    coordinator = MemoryService(1).coordinators()[0]
    coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:0")
    source = listen(coordinator)
    assert task_named_by(ear.wait()) == "/job:worker/task:0"
    source.stop()
    assert not coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "another")
