from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from keras_preempt.process.threads import Pool


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_is_given_is_done_by_threads() -> None:
    with Pool(2, "some") as pool:
        assert pool.submit(lambda: threading.current_thread().name).result().startswith("some")
        with pytest.raises(KeyError):
            pool.submit({}.__getitem__, "missing").result()


def test_without_threads_it_is_done_by_who_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with Pool(2, "some") as pool:
        assert pool.submit(threading.current_thread).result() is threading.current_thread()
        assert isinstance(pool.submit({}.__getitem__, "missing").exception(), KeyError)


def test_beside_a_thread_that_is_there_each_call_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, calls = threading.Event(), []
    with Pool(8, "some") as pool:
        first = pool.submit(goes_on.wait, 60)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        futures = [pool.submit(calls.append, number) for number in range(100)]
        assert sorted(calls) == list(range(100))
        goes_on.set()  # The thread finds the same calls in its queue.
        wait([first, *futures], 60)
    assert sorted(calls) == list(range(100))


def test_what_has_not_begun_is_left_out_if_it_is_cancelled() -> None:
    goes_on, calls = threading.Event(), []
    with Pool(1, "some") as pool:
        pool.submit(goes_on.wait, 60)
        futures = [pool.submit(calls.append, number) for number in range(3)]
        assert futures[0].cancel()
        goes_on.set()
    assert calls == [1, 2]


def test_a_pool_that_is_shut_down_takes_nothing_and_leaves_nothing_waiting() -> None:
    goes_on, begun = threading.Event(), threading.Event()
    pool = Pool(1, "some")
    pool.submit(lambda: (begun.set(), goes_on.wait(60)))
    left = pool.submit(int)
    assert begun.wait(60)
    threading.Timer(0.1, goes_on.set).start()
    pool.shutdown(cancel_futures=True)
    assert left.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(int)
