from __future__ import annotations

import threading
import time

from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY
from keras_preempt.notices import Notice
from keras_preempt.notices.coordination_key import CoordinationKeyNotices, names_member
from tests.agreement.memory_coordinator import PATIENCE, MemoryService


class Heard:
    """Collects notices; waits for one."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._came = threading.Event()

    def __call__(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._came.set()

    def one(self) -> Notice:
        assert self._came.wait(PATIENCE)
        (notice,) = self.notices
        return notice


def is_waiting() -> bool:
    for thread in threading.enumerate():
        if thread.name == "keras_preempt-notice-key":
            thread.join(0.5)  # on its way out
            if thread.is_alive():
                return True
    return False


def test_tensorflows_key_is_a_notice_that_names_the_task() -> None:
    coordinator, _ = MemoryService(2).coordinators()
    heard = Heard()
    source = CoordinationKeyNotices(coordinator, heard)
    source.start()
    before = time.time()
    coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:1")
    notice = heard.one()
    source.stop()
    assert notice.source == "coordination key"
    assert before <= notice.received_at <= time.time()
    assert names_member(notice, "/job:worker/task:1")
    assert not names_member(notice, "/job:worker/task:0")
    assert not is_waiting()


def test_task_1_is_not_taken_for_task_11() -> None:
    notice = Notice("coordination key", "TensorFlow's notice for /job:worker/task:11", 0.0)
    assert not names_member(notice, "/job:worker/task:1")


def test_only_a_notice_from_this_source_is_about_a_task() -> None:
    assert not names_member(Notice("signal", "/job:worker/task:1", 0.0), "/job:worker/task:1")


def test_stop_ends_the_wait_delivers_nothing_and_leaves_no_key() -> None:
    service = MemoryService(1)
    heard = Heard()
    source = CoordinationKeyNotices(service.coordinators()[0], heard)
    source.start()
    source.stop()
    source.stop()
    assert heard.notices == []
    assert not is_waiting()
    assert service.keys() == []


def test_a_member_that_stops_takes_no_notice_from_the_others() -> None:
    service = MemoryService(2)
    first, second = service.coordinators()
    heard = Heard()
    one, other = CoordinationKeyNotices(first, lambda notice: None), CoordinationKeyNotices(second, heard)
    one.start()
    other.start()
    one.stop()
    assert heard.notices == []
    first.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:1")
    assert heard.one().reason.endswith("/job:worker/task:1")
    other.stop()
    assert not is_waiting()


def test_all_members_may_stop_at_once() -> None:
    service = MemoryService(4)
    sources = [CoordinationKeyNotices(c, lambda notice: None) for c in service.coordinators()]
    for source in sources:
        source.start()
    threads = [threading.Thread(target=source.stop) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not is_waiting()


def test_a_service_that_fails_ends_the_wait_without_a_notice() -> None:
    service = MemoryService(1)
    heard = Heard()
    source = CoordinationKeyNotices(service.coordinators()[0], heard)
    source.start()
    service.lose()
    source.stop()
    assert heard.notices == []
    assert not is_waiting()


def test_a_notice_that_was_there_before_is_heard() -> None:
    coordinator = MemoryService(1).coordinators()[0]
    coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "/job:worker/task:0")
    heard = Heard()
    source = CoordinationKeyNotices(coordinator, heard)
    source.start()
    assert names_member(heard.one(), "/job:worker/task:0")
    source.stop()
    assert not is_waiting()
    assert not coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, "another")  # TensorFlow's notice stays
