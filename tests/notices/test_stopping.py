from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from keras_preempt.notices.stopping import Stopped, Stopping


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    stopping = Stopping()
    yield stopping
    stopping.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_wait_that_nobody_ends_takes_its_time(stopping):
    begin = time.monotonic()
    stopping.wait(0.1)
    assert time.monotonic() - begin >= 0.1


def test_the_word_to_stop_ends_a_wait_and_every_later_one(stopping, pair):
    timer = threading.Timer(0.1, stopping.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(Stopped):
        stopping.wait(30)
    timer.join()
    stopping.set()
    for _ in range(2):
        with pytest.raises(Stopped):
            stopping.wait(30)
        with pytest.raises(Stopped):
            stopping.wait_for(pair[0], select.POLLIN, time.monotonic() + 30)
    assert time.monotonic() - begin < 10
    assert stopping.is_set


def test_a_socket_that_is_ready_ends_a_wait_in_time_only(stopping, pair):
    with pytest.raises(TimeoutError):
        stopping.wait_for(pair[0], select.POLLIN, time.monotonic() + 0.05)
    pair[1].send(b"x")
    stopping.wait_for(pair[0], select.POLLIN, time.monotonic() + 30)
    with pytest.raises(TimeoutError):
        stopping.wait_for(pair[0], select.POLLIN, time.monotonic() - 1)


def test_the_word_to_stop_may_come_when_all_is_over():
    stopping = Stopping()
    stopping.close()
    stopping.set()
    assert stopping.is_set
