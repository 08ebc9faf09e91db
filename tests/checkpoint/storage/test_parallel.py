"""Calls of a store that are made several at a time."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage import parallel
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.parallel import REQUESTS, TRANSFERS, in_parallel
from keras_preempt.checkpoint.storage.store import Store

LARGE = 1 << 30


class Remote(LocalStore):
    """A directory that counts as behind a network."""

    shared_by_network = True
    connections = 8


@pytest.fixture
def directory(tmp_path: Path) -> Store:
    return LocalStore(tmp_path)


@pytest.fixture
def bucket(tmp_path: Path) -> Store:
    return Remote(tmp_path)


def test_results_come_in_the_order_of_the_calls(directory: Store) -> None:
    first = threading.Event()

    def wait() -> int:
        assert first.wait(30)
        return 0

    def go() -> int:
        first.set()
        return 1

    assert in_parallel(directory, [wait, go], LARGE) == [0, 1]


@pytest.mark.parametrize(
    ("remote", "size", "most"),
    [
        (False, LARGE, TRANSFERS),
        (True, LARGE, Remote.connections),
        (True, 0, REQUESTS),
        (True, 64 << 20, REQUESTS),  # 64 kB each
        (False, 0, parallel._LOCAL),
    ],
    ids=["transfers", "of a bucket", "requests to a bucket", "its small files", "many small files"],
)
def test_a_limited_number_of_calls_run_at_once(
    remote: bool, size: int, most: int, directory: Store, bucket: Store
) -> None:
    together, lock, running, seen = threading.Barrier(most), threading.Lock(), [0], [0]

    def call() -> None:
        with lock:
            running[0] += 1
            seen[0] = max(seen[0], running[0])
        together.wait(30)
        with lock:
            running[0] -= 1

    in_parallel(bucket if remote else directory, [call] * most * parallel._WORTH, size)
    assert seen == [most]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("size", [0, LARGE])
def test_the_first_failure_in_order_is_raised_after_all_calls_have_ended(
    size: int, remote: bool, directory: Store, bucket: Store
) -> None:
    ended: list[int] = []

    def call(number: int) -> None:
        ended.append(number)
        if number >= 1:
            raise ValueError(f"number {number}")

    calls = [partial(call, number) for number in range(4 * REQUESTS)]
    with pytest.raises(ValueError, match=r"number 1$"):
        in_parallel(bucket if remote else directory, calls, size)
    assert 1 in ended
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("keras_preempt-transfer")
    ]


def test_calls_that_have_not_begun_when_one_fails_are_not_made(bucket: Store) -> None:
    made: list[int] = []
    failed = threading.Event()

    def call(number: int) -> None:
        made.append(number)
        if number == 0:
            failed.set()
            raise ValueError("number 0")
        assert failed.wait(30)
        threading.Event().wait(0.05)  # The caller has time to hear of it.

    with pytest.raises(ValueError, match="number 0"):
        in_parallel(bucket, [partial(call, number) for number in range(100 * REQUESTS)])
    assert len(made) < 50 * REQUESTS


@pytest.mark.parametrize("count", [1, 2, 31])
def test_a_few_small_calls_of_a_directory_are_made_in_the_calling_thread(
    count: int, directory: Store, bucket: Store
) -> None:
    here = threading.get_ident()
    assert in_parallel(directory, [threading.get_ident] * count) == [here] * count
    assert in_parallel(bucket, [threading.get_ident], LARGE) == [here]
    assert here not in in_parallel(bucket, [threading.get_ident] * 2)
