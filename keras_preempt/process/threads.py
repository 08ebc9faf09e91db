"""Threads for work that the calling thread does itself if none can be started.

A container may limit the number of threads, and memory for one more may be missing. That must not fail work that the
calling thread can do as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

logger = logging.getLogger("keras_preempt")

P = ParamSpec("P")
Result = TypeVar("Result")


def started(call: Callable[..., object], name: str, *arguments: object) -> threading.Thread | None:
    """Starts a daemon thread that makes a call; returns None if none can be started."""
    thread = threading.Thread(target=call, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        logger.info("The thread %s could not be started: %s", name, error)
        return None
    return thread


def call_within(seconds: float, call: Callable[[], Result], name: str) -> Result:
    """Makes a call that cannot be cancelled in a thread of its own; returns or raises what it does.

    Raises TimeoutError, and leaves the thread behind, if the call has not returned after so many seconds.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    if started(run, name) is None:
        run()
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"{name} has not returned within {seconds} s.")
    return outcome.result()


class Pool:
    """A pool of at most `most` threads; makes calls in the calling thread if it cannot start one."""

    def __init__(self, most: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._is_shut_down = False

    def submit(self, call: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        """Raises RuntimeError if the pool is shut down."""
        future: Future[Result] = Future()
        begun = threading.Lock()

        def run() -> None:
            """Makes the call, unless another thread has begun it."""
            if not begun.acquire(blocking=False) or not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        def leave_out(done: Future[None]) -> None:
            if done.cancelled() and future.cancel():
                future.set_running_or_notify_cancel()  # Wakes `concurrent.futures.wait`, which `cancel` does not.

        try:
            handed_over = self._executor.submit(run)
        except (RuntimeError, MemoryError):
            if self._is_shut_down:
                raise
            run()  # It is in the queue nevertheless, where a thread that is there already may find it.
        else:
            handed_over.add_done_callback(leave_out)
        return future

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Waits for the calls; `cancel_futures` leaves out those that have not begun."""
        self._is_shut_down = True
        self._executor.shutdown(cancel_futures=cancel_futures)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
