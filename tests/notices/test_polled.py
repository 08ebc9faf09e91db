from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
import pytest

from keras_preempt.notices.polling import PolledNotices
from tests.notices.ear import PATIENCE, POLL, Ear, started, wait_until


class Function:
    """A watcher function that returns what it is told to, and counts its calls."""

    def __init__(self, *returns: object) -> None:
        self.calls = 0
        self.returns = list(returns)
        self._called = threading.Condition()

    def __call__(self) -> object:
        with self._called:
            self.calls += 1
            self._called.notify_all()
        returned = self.returns.pop(0) if len(self.returns) > 1 else self.returns[0]
        if isinstance(returned, BaseException):
            raise returned
        return returned() if callable(returned) else returned

    def wait(self, calls: int) -> None:
        with self._called:
            assert self._called.wait_for(lambda: self.calls >= calls, PATIENCE)


@contextmanager
def polling(
    function: Callable[[], object], ear: Ear, blocking_seconds: float = 10.0, poll_seconds: float = POLL
) -> Iterator[PolledNotices]:
    how = {"poll_seconds": poll_seconds, "blocking_seconds": blocking_seconds}
    with started(PolledNotices(function, ear.notice, **how)) as source:
        yield source


@pytest.mark.parametrize("truth", [True, numpy.True_, numpy.array(True), 1])
def test_true_is_one_notice_and_the_last_call(ear, truth):
    function = Function(False, False, truth)
    with polling(function, ear):
        notice = ear.wait()
        assert (notice.source, notice.deadline) == ("termination_watcher_fn", None)
        assert ear.hears_nothing_new()
    assert function.calls == 3


@pytest.mark.parametrize("untruth", [False, numpy.False_, numpy.array(False), 0])
def test_false_is_no_notice_and_the_function_is_called_again(ear, untruth, caplog):
    function = Function(untruth)
    with polling(function, ear):
        function.wait(5)
    assert ear.notices == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "nonsense", [None, "True", "", 2, -1, 1.0, [True], numpy.array([True]), object(), {}]
)
def test_nonsense_is_taken_for_false_and_said_once(ear, nonsense, caplog):
    function = Function(nonsense, nonsense, nonsense, nonsense, True)
    with polling(function, ear):
        ear.wait()
    assert function.calls == 5
    (record,) = caplog.records
    assert "Expected termination_watcher_fn to return True or False. Received: " in record.message


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), AssertionError()])
def test_a_function_that_raises_is_called_again_and_that_is_said_once(ear, error, caplog):
    function = Function(error, error, False, error, True)
    with polling(function, ear):
        ear.wait()
    (record,) = caplog.records
    assert f"it raised {type(error).__name__}. It is called again every {POLL:g} s" in record.message
    assert record.exc_info


def test_a_function_that_blocks_is_said_to_once_and_holds_nobody_up(ear, caplog):
    release = threading.Event()
    with polling(Function(lambda: release.wait(PATIENCE)), ear, blocking_seconds=0.1) as source:
        wait_until(lambda: bool(caplog.records))
        time.sleep(0.3)
        begin = time.monotonic()
        source.stop()
        assert time.monotonic() - begin < 2
        (record,) = caplog.records
        assert "Expected termination_watcher_fn to return at once." in record.message
        release.set()  # It returns True now, too late.
        assert ear.hears_nothing_new()
        assert ear.notices == []


def test_many_short_calls_are_not_said_to_block(ear, caplog):
    function = Function(False)
    with polling(function, ear, blocking_seconds=0.4, poll_seconds=0.6):
        function.wait(3)  # The time between two calls does not count.
    assert caplog.records == []


def test_stop_before_start_twice_and_from_the_notice_itself_is_fine(ear):
    PolledNotices(lambda: True, ear.notice).stop()
    with polling(lambda: False, ear) as source:
        source.stop()

    def notice_and_stop(notice):
        source.stop()
        ear.notice(notice)

    source = PolledNotices(lambda: True, notice_and_stop)
    with started(source):
        ear.wait()
