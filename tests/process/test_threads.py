from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from keras_preempt.process.threads import Pool, call_within


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


@pytest.mark.parametrize("given_up_before", [True, False])
def test_who_waits_for_calls_that_are_left_out_is_woken(given_up_before: bool) -> None:
    goes_on, begun = threading.Event(), threading.Event()
    pool = Pool(1, "some")
    pool.submit(lambda: (begun.set(), goes_on.wait(60)))
    left = pool.submit(int)
    assert begun.wait(60)
    if given_up_before:
        left.cancel()
    threading.Timer(0.1, goes_on.set).start()
    pool.shutdown(cancel_futures=True)
    assert not wait([left], 5).not_done


@pytest.mark.parametrize("with_threads", [True, False])
def test_a_call_with_a_limit_returns_and_raises_what_it_does(
    with_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_threads:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    made_by = call_within(60, threading.current_thread, "some")
    assert (made_by is threading.current_thread()) == (not with_threads)
    with pytest.raises(KeyError):
        call_within(60, lambda: {}["missing"], "some")


def test_a_call_that_does_not_return_is_left_behind() -> None:
    goes_on = threading.Event()
    with pytest.raises(TimeoutError, match=r"some has not returned within 0.01 s"):
        call_within(0.01, goes_on.wait, "some")
    goes_on.set()
