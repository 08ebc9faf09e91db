from __future__ import annotations

import threading
from functools import partial

import pytest

from keras_preempt.checkpoint.assembly import TRANSFERS, in_parallel

LARGE = 1 << 30


def test_results_come_in_the_order_of_the_calls() -> None:
    first = threading.Event()

    def wait() -> int:
        assert first.wait(30)
        return 0

    def go() -> int:
        first.set()
        return 1

    assert in_parallel([wait, go], LARGE) == [0, 1]


def test_a_limited_number_of_calls_run_at_once() -> None:
    together, lock, running, most = threading.Barrier(TRANSFERS), threading.Lock(), [0], [0]

    def call() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(30)
        with lock:
            running[0] -= 1

    in_parallel([call] * TRANSFERS * 10, LARGE)
    assert most == [TRANSFERS]


@pytest.mark.parametrize("size", [0, LARGE])
def test_the_first_failure_in_order_is_raised_after_all_calls_have_ended(size: int) -> None:
    ended: list[int] = []

    def call(number: int) -> None:
        ended.append(number)
        if number >= 1:
            raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number 1"):
        in_parallel([partial(call, number) for number in range(40)], size)
    before = list(ended)
    assert 1 in before
    assert len(before) < 40 or size
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("keras_preempt-transfer")
    ]


def test_small_transfers_are_made_in_the_calling_thread() -> None:
    assert in_parallel([threading.get_ident] * 3, 100) == [threading.get_ident()] * 3
    assert in_parallel([threading.get_ident], LARGE) == [threading.get_ident()]
