"""Threads that do what they are given; without them, whoever gives it does it.

A container may limit how many threads there are, and memory for one more may be missing. Nothing that can be done in
the calling thread as well must fail for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

logger = logging.getLogger("keras_preempt")

P = ParamSpec("P")
Result = TypeVar("Result")


def started(call: Callable[..., object], name: str, *arguments: object) -> threading.Thread | None:
    """Starts a daemon thread; returns None if none can be started.

    Args:
        call: What it does.
        name: Its name.
        *arguments: What `call` is given.
    """
    thread = threading.Thread(target=call, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        logger.info("The thread %s could not be started: %s", name, error)
        return None
    return thread


class _Task(Generic[Result]):
    """One call, made by whoever comes first, once."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self.future: Future[Result] = Future()
        self._call = call
        self._begun = threading.Lock()

    def __call__(self) -> None:
        # Somebody else may have begun it: see `Pool.submit`.
        if not self._begun.acquire(blocking=False) or not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Pool:
    """A `ThreadPoolExecutor` for which no thread is needed.

    Args:
        most: How many threads there may be.
        name: What their names begin with.
    """

    def __init__(self, most: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._is_shut_down = False

    def submit(self, call: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        """Has a call made by a thread, or makes it, if none can be started.

        Raises:
            RuntimeError: The pool is shut down.
        """
        task = _Task(lambda: call(*args, **kwargs))
        try:
            handed_over = self._executor.submit(task)
        except (RuntimeError, MemoryError):
            if self._is_shut_down:
                raise
            task()  # It stands in the queue nevertheless, where a thread that is there already may find it.
        else:
            handed_over.add_done_callback(lambda done: done.cancelled() and task.future.cancel())
        return task.future

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Waits for the calls; `cancel_futures` leaves out those that have not begun."""
        self._is_shut_down = True
        self._executor.shutdown(cancel_futures=cancel_futures)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
