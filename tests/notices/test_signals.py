from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from keras_preempt.notices import Notice
from keras_preempt.notices.signals import SignalNotices, parse_signals
from tests.notices.ear import Ear, started

SIGNALS = parse_signals(["SIGUSR1", "SIGUSR2"])


class Heard(Ear):
    """What a source has told: notices, in the listener thread, and signals, in the main thread."""

    def __init__(self) -> None:
        super().__init__()
        self.signals = 0
        self.threads: set[str] = set()

    def notice(self, notice: Notice) -> None:
        self.threads.add(threading.current_thread().name)
        super().notice(notice)

    def signal(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.signals += 1

    def reasons(self, count: int) -> list[str]:
        self.wait(count)
        return [notice.reason for notice in self.notices]


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def source(heard: Heard) -> Iterator[SignalNotices]:
    with started(SignalNotices(SIGNALS, heard.notice, heard.signal)) as source:
        yield source


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What earlier handlers of two signals hear, which come back."""
    told: list[int] = []
    numbers = (signal.SIGALRM, signal.SIGUSR1)
    before = [signal.signal(number, lambda number, frame: told.append(number)) for number in numbers]
    yield told
    for number, earlier in zip(numbers, before, strict=True):
        signal.signal(number, earlier)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_every_named_signal_is_told_to_the_main_thread_and_becomes_a_notice_in_the_listener(
    source: SignalNotices, heard: Heard
) -> None:
    before = time.time()
    send(signal.SIGUSR1)
    assert heard.reasons(1) == ["SIGUSR1"]
    assert heard.signals == 1
    assert heard.notices[0].source == "signal"
    assert heard.notices[0].deadline is None
    assert before <= heard.notices[0].received_at <= time.time()
    assert heard.threads == {"keras_preempt-signals"}
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        send(number)
    assert sorted(heard.reasons(3)) == ["SIGUSR1", "SIGUSR1", "SIGUSR2"]


def test_the_notice_does_not_wait_for_the_main_thread() -> None:
    # The main thread sits in one long call of C, as in a training step: the Python handler is late.
    program = """
import hashlib, os, signal, threading, time
from keras_preempt.notices.signals import SignalNotices
order = []
source = SignalNotices([signal.SIGUSR1], lambda n: order.append("notice"), lambda: order.append("signal"))
source.start()
began = threading.Event()
def strike():
    began.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=strike).start()
began.set()
hashlib.pbkdf2_hmac("sha256", b"a", b"step", 1_500_000)
source.stop()
print(*order)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "notice signal\n", run.stderr


def test_signals_that_were_not_named_are_left_alone(
    told: list[int], source: SignalNotices, heard: Heard
) -> None:
    send(signal.SIGALRM)
    send(signal.SIGUSR1)
    assert heard.reasons(1) == ["SIGUSR1"]
    assert told == [signal.SIGALRM]


def test_a_wake_up_descriptor_that_was_there_before_is_still_served_and_comes_back(
    told: list[int], heard: Heard
) -> None:
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    reader.settimeout(10)
    signal.set_wakeup_fd(writer.fileno())
    try:
        with started(SignalNotices(SIGNALS, heard.notice, heard.signal)):
            send(signal.SIGALRM)
            assert reader.recv(1) == bytes([signal.SIGALRM])
        send(signal.SIGALRM)
        assert reader.recv(1) == bytes([signal.SIGALRM])
    finally:
        assert signal.set_wakeup_fd(-1) == writer.fileno()
        reader.close()
        writer.close()


@pytest.mark.parametrize("stopped_in", ["main thread", "another thread"])
def test_stop_puts_the_earlier_handlers_back_and_can_be_called_twice(
    stopped_in: str, told: list[int], heard: Heard
) -> None:
    with started(SignalNotices(SIGNALS, heard.notice, heard.signal)) as source:
        if stopped_in == "main thread":
            source.stop()
        else:
            stopper = threading.Thread(target=source.stop)
            stopper.start()
            stopper.join()
            # No descriptor that a later file could get is written to.
            assert os.fstat(_wakeup_descriptor())
        send(signal.SIGUSR1)
    assert told == [signal.SIGUSR1]
    assert heard.notices == []
    assert heard.signals == 0


def _wakeup_descriptor() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    return descriptor


def test_without_signals_nothing_is_touched(heard: Heard) -> None:
    with started(SignalNotices((), heard.notice, heard.signal)):
        assert _wakeup_descriptor() == -1


def test_only_the_main_thread_may_listen() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(SignalNotices.possible()))
    thread.start()
    thread.join()
    assert found == [False]
    assert SignalNotices.possible()


@pytest.mark.parametrize("forked_in", ["main thread", "another thread"])
def test_a_signal_to_a_forked_child_ends_the_child_and_is_no_notice_for_the_parent(forked_in: str) -> None:
    program = """
import os, signal, sys, threading, time
from keras_preempt.notices.signals import SignalNotices
told, children, ends = [], [], set()
source = SignalNotices([signal.SIGTERM], lambda n: told.append("notice"), lambda: told.append("signal"))
source.start()
ready, tell = os.pipe()
def fork():
    child = os.fork()
    if child == 0:
        os.write(tell, b"1")
        time.sleep(20)
        os._exit(7)
    children.append(child)
for number in range(100):
    if sys.argv[1] == "main thread":
        fork()
    else:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    if number == 0:
        os.read(ready, 1)  # This one runs; the others were just forked.
    os.kill(children[-1], signal.SIGTERM)
    ends.add(os.waitstatus_to_exitcode(os.waitpid(children[-1], 0)[1]))
print(*ends, *told)
os.kill(os.getpid(), signal.SIGTERM)  # still heard, once
limit = time.monotonic() + 10
while "notice" not in told and time.monotonic() < limit:
    time.sleep(0.01)
source.stop()
print(*sorted(told))
"""
    command = [sys.executable, "-c", program, forked_in]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.stdout == f"-{int(signal.SIGTERM)}\nnotice signal\n", run.stderr


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 1, 0), (2, 0, 1)])
def test_sources_may_stop_in_any_order_and_the_last_one_that_began_hears_until_it_stops(
    order: tuple[int, int, int],
) -> None:
    """A fit that was left by an exception stops when the exception is forgotten: perhaps during the next fit."""
    heard = [Heard() for _ in order]
    sources = [SignalNotices(SIGNALS, each.notice, each.signal) for each in heard]
    for source in sources:
        source.start()
    listening = set(order)
    for count, stopped in enumerate(order):
        newest = max(listening)
        before = len(heard[newest].notices)
        os.kill(os.getpid(), signal.SIGUSR1)
        heard[newest].wait(before + 1)
        sources[stopped].stop()
        listening.discard(stopped)
        assert len(listening) == len(order) - count - 1
