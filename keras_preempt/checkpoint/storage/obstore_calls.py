"""How calls of obstore are made: on an event loop in a thread of ours, and waited for in short pieces.

A synchronous call of the library does not let Python run the handler of a signal until it returns, which may take as
long as a stalled upload. So no thread of ours makes one. Whoever waits here hears signals at once, keeps a deadline
that appears meanwhile, and cuts a call on which nothing moves.

The library has threads of its own, one set in a process. They are idle when no call is under way, and nothing can end
them. A forked child does not have them, and would wait for them forever: so it gets an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.process.threads import started

Result = TypeVar("Result")

CallRequest = Callable[[Callable[[], None]], Coroutine[Any, Any, Result]]
"""Makes a call; it is given what it has to call when something has moved."""

_LOOK = 0.1  # seconds between two looks at how long a call has been silent
_ENDING = 2.0  # seconds for a loop to end; then its thread is left behind

_used_in: int | None = None  # The process that has the library's threads.


class Silence(Exception):
    """A call was cut, since nothing had moved for as long as that may be."""


class CallLoop:
    """An event loop in a thread that exists from the first call until `close`, and again from the next call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], object] | None = None

    def make(
        self,
        request: CallRequest[Result],
        patience: Callable[[], float],
        is_moving: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Makes a call; raises `Silence` when nothing has moved for `patience()` seconds, and what the call raises.

        `patience` is asked again and again; a call is cut at once if it returns 0. So is `is_moving`, for calls that
        cannot say themselves when something moves.
        """
        moved_at = time.monotonic()

        def moved() -> None:
            nonlocal moved_at
            moved_at = time.monotonic()

        future = asyncio.run_coroutine_threadsafe(request(moved), self._running())
        try:
            while not wait([future], _LOOK).done:
                if is_moving():
                    moved()
                silent, longest = time.monotonic() - moved_at, patience()
                if silent >= longest:
                    raise Silence(f"no answer for {silent:.1f} s")
            return future.result()
        finally:
            future.cancel()
            # It holds the error, whose traceback holds this frame: a circle that would keep connections open.
            del future

    def close(self) -> None:
        """Ends the thread, and calls that are under way."""
        with self._lock:
            end, self._end, self._loop = self._end, None, None
        if end is not None:
            end()

    def _running(self) -> asyncio.AbstractEventLoop:
        global _used_in
        if _used_in not in (
            None,
            os.getpid(),
        ):  # Before the lock, which the parent may have held when it forked.
            raise StoreUnavailable(
                "Expected the process that uses a bucket to start its threads. Received: a child that was forked from "
                "one that has used a bucket; threads do not survive that. Start the child by 'spawn' or "
                "'forkserver', or let the parent alone use the bucket."
            )
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = started(_serve, "keras_preempt-bucket-calls", loop)
                if thread is None:
                    loop.close()
                    raise StoreUnavailable(
                        "Expected to start one more thread, which makes the calls of a bucket. Received: the system's "
                        "refusal. Raise the limit of threads of this process or container, or free memory."
                    )
                self._loop = loop
                # It also runs when this is forgotten, and at the exit of the interpreter.
                self._end = weakref.finalize(self, _end, loop, thread, os.getpid())
                _used_in = os.getpid()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_ENDING)


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, owner: int) -> None:
    if os.getpid() == owner:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_ENDING)
