"""A process that waits for one that has failed ends where its main thread does not."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from keras_preempt.agreement.coordinator import CoordinationLost, LocalCoordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.training.error_watch import NOBODY, ErrorWatch

KEY = "keras_preempt/failed"
OF_ANOTHER = Failure(1, "ValueError", 0, "the user's own error")
OWN = Failure(0, "ValueError", 0, "the user's own error")


class Watched:
    """A watch over a dictionary of keys, and what it has done."""

    def __init__(self, patience: float = 0.01, coordinator: LocalCoordinator | None = None) -> None:
        self.coordinator = coordinator or LocalCoordinator()
        self.heard: list[Failure] = []
        self.ended = threading.Event()
        self.watch = ErrorWatch(self.coordinator, KEY, self.heard.append, self.ended.set, patience)

    def is_alive(self) -> bool:
        return any(thread.name == "keras_preempt-error-watch" for thread in threading.enumerate())

    def join(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "keras_preempt-error-watch":
                thread.join(10)
        assert not self.is_alive()


def test_the_process_ends_when_its_main_thread_does_not() -> None:
    watched = Watched()
    watched.watch.start()
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert watched.ended.wait(10)
    assert watched.heard == [OF_ANOTHER], "it is told before the process ends"
    watched.join()
    watched.watch.stop()


def test_a_main_thread_that_finds_out_by_itself_is_left_alone() -> None:
    looked = threading.Event()

    class Looking(LocalCoordinator):
        def wait_for(self, key: str, timeout: float | None) -> str:
            try:
                return super().wait_for(key, timeout)
            finally:
                looked.set()

    watched = Watched(patience=60, coordinator=Looking())
    watched.watch.start()
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert looked.wait(10)
    watched.watch.stop()
    watched.join()
    assert not watched.ended.is_set()
    assert watched.heard == []
    assert watched.coordinator.wait_for(KEY, 1) == OF_ANOTHER.encode(), "others still have to hear it"


def test_training_that_ends_well_ends_the_watch_and_leaves_no_key() -> None:
    watched = Watched()
    watched.watch.start()
    assert watched.is_alive()
    watched.watch.stop()
    watched.join()
    assert watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode()), "the key is free for an error"
    watched.watch.stop()
    assert not watched.ended.is_set()


def test_this_process_own_failure_is_ignored() -> None:
    watched = Watched()
    watched.watch.start()
    watched.coordinator.put_if_absent(KEY, OWN.encode())
    watched.join()
    assert not watched.ended.is_set()
    assert watched.heard == []
    watched.watch.stop()


def test_somebody_who_looks_at_the_key_is_not_a_failure() -> None:
    woken = threading.Semaphore(0)

    class Looking(LocalCoordinator):
        def wait_for(self, key: str, timeout: float | None) -> str:
            woken.release()
            return super().wait_for(key, timeout)

    watched = Watched(coordinator=Looking())
    watched.watch.start()
    assert woken.acquire(timeout=10)
    watched.coordinator.put_if_absent(KEY, NOBODY)
    assert woken.acquire(timeout=10), "it waits again"
    assert not watched.ended.is_set()
    watched.coordinator.delete(KEY)
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert watched.ended.wait(10)
    watched.watch.stop()


def test_a_service_that_is_lost_ends_the_watch() -> None:
    class Lost(LocalCoordinator):
        def wait_for(self, key: str, timeout: float | None) -> str:
            raise CoordinationLost("Socket closed")

        def put_if_absent(self, key: str, value: str) -> bool:
            raise CoordinationLost("Socket closed")

    watched = Watched(coordinator=Lost())
    watched.watch.start()
    watched.join()
    assert not watched.ended.is_set()
    watched.watch.stop()


ENDS = f"""
import threading
from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.training.error_watch import ErrorWatch
coordinator = LocalCoordinator()
ErrorWatch(coordinator, {KEY!r}, lambda failure: print("told:", failure, flush=True), patience=0.01).start()
coordinator.put_if_absent({KEY!r}, Failure(1, "ValueError", 0, "own").encode())
threading.Event().wait(60)
"""


@pytest.mark.parametrize("program", [ENDS])
def test_the_status_is_that_of_an_error_of_the_program(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (run.returncode, run.stdout) == (1, "told: ValueError: own\n"), run.stderr
