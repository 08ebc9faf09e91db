from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from keras_preempt.agreement.alignment import Position
from keras_preempt.training.saver import Saved
from keras_preempt.training.saves import BackgroundSave
from keras_preempt.training.timers import Interval

PATIENCE = 30.0
HERE = Position(0, "train", 3, 3)


def test_training_goes_on_while_a_save_is_written() -> None:
    background, written = BackgroundSave(), threading.Event()

    def write(cancelled: Callable[[], bool]) -> Saved:
        assert written.wait(PATIENCE)
        return Saved("step-00000003/00001-0000", 1.0)

    background.start(HERE, write)
    assert background.busy
    assert background.last is None
    written.set()
    assert background.wait() == Saved("step-00000003/00001-0000", 1.0)
    assert background.position == HERE
    assert not background.busy


def test_at_most_one_save_is_in_flight() -> None:
    background, order = BackgroundSave(), []
    release = threading.Event()

    def first(cancelled: Callable[[], bool]) -> Saved:
        assert release.wait(PATIENCE)
        order.append("first")
        return Saved("1", 0.0)

    def second(cancelled: Callable[[], bool]) -> Saved:
        order.append("second")
        return Saved("2", 0.0)

    background.start(HERE, first)
    threading.Timer(0.05, release.set).start()
    background.start(HERE, second)
    background.wait()
    assert order == ["first", "second"]


def test_an_error_in_the_background_is_raised_at_the_next_wait_and_only_once() -> None:
    background = BackgroundSave()

    def write(cancelled: Callable[[], bool]) -> Saved:
        raise MemoryError("no room")

    background.start(HERE, write)
    with pytest.raises(MemoryError, match="no room"):
        background.wait()
    assert background.wait() is None


def test_a_save_that_is_cancelled_learns_of_it_and_the_next_one_does_not() -> None:
    background, seen = BackgroundSave(), []
    begun = threading.Event()

    def write(cancelled: Callable[[], bool]) -> Saved:
        begun.set()
        while not cancelled():
            threading.Event().wait(0.001)
        seen.append("cancelled")
        return Saved(None, 0.0)

    background.start(HERE, write)
    assert begun.wait(PATIENCE)
    background.cancel()
    assert seen == ["cancelled"]
    background.start(HERE, lambda cancelled: Saved("not" if cancelled() else "saved", 0.0))
    saved = background.wait()
    assert saved is not None
    assert saved.name == "saved"


def test_an_interval_calls_again_and_again_until_it_is_stopped() -> None:
    called = threading.Semaphore(0)
    interval = Interval(0.001, lambda: called.release())
    assert called.acquire(timeout=PATIENCE)
    assert called.acquire(timeout=PATIENCE)
    interval.stop()
    assert not [t for t in threading.enumerate() if t.name == "keras_preempt-interval"]
    interval.stop()
