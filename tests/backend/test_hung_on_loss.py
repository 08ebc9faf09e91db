"""A coordinator does not wait for ever for workers that are gone."""

from __future__ import annotations

import threading

import pytest

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.backend.hung_on_loss import HungOnLoss
from keras_preempt.notices.coordination_key import CoordinationKeyNotices
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.agreement.memory_coordinator import MemoryCoordinator, MemoryService
from tests.backend.programs import python


def test_the_process_ends_when_training_does_not(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    hung = HungOnLoss(ended.set, patience=0.01)
    hung.begin()
    assert ended.wait(10)
    assert "The remote workers are gone" in caplog.text
    hung.stop()


def test_a_training_that_ends_by_itself_ends_the_limit() -> None:
    ended = threading.Event()
    hung = HungOnLoss(ended.set, patience=60)
    hung.begin()
    hung.stop()
    assert not ended.is_set()
    assert not [thread for thread in threading.enumerate() if "hung-on-loss" in thread.name]


def test_the_exit_status_is_that_of_a_lost_worker() -> None:
    program = "from keras_preempt.backend.hung_on_loss import end_with_worker_lost; end_with_worker_lost()"
    assert python(program, timeout=60).returncode == EXIT_WORKER_LOST


def test_a_thread_that_holds_pythons_lock_does_not_keep_the_process_alive() -> None:
    program = (
        "import ctypes, keras_preempt.backend.hung_on_loss as hung\n"
        "hung.LAST_RESORT = 0.5\n"
        "hung.HungOnLoss(patience=0.5).begin()\n"
        "ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock\n"
    )
    done = python(program, timeout=50)
    assert done.returncode == 1
    assert "Timeout (" in done.stderr


class Failing(MemoryCoordinator):
    """Its service dies under the waiting thread, when the test says so."""

    def __init__(self) -> None:
        super().__init__(MemoryService(1), 0)
        self.dies = threading.Event()

    def wait_for(self, key: str, timeout: float | None) -> str:
        assert self.dies.wait(10)
        raise CoordinationLost("Socket closed")

    def put_if_absent(self, key: str, value: str) -> bool:
        self.dies.set()  # By now, whoever stops has said so.
        raise CoordinationLost("Socket closed")


@pytest.mark.parametrize("is_over", [False, True])
def test_the_loss_of_the_service_is_told_unless_training_is_over(is_over: bool) -> None:
    coordinator, told = Failing(), threading.Event()
    notices = CoordinationKeyNotices(coordinator, lambda notice: None, told.set)
    notices.start()
    if not is_over:
        coordinator.dies.set()
        assert told.wait(10)
    notices.stop()
    assert told.is_set() != is_over
