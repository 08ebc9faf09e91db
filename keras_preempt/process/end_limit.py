"""A limit to how long Python may take to end a process that has said its exit status.

At exit Python waits for every thread that is no daemon, runs the exit functions of all libraries, and drops all
objects. Each of these may hang: on a file system, or on another process that is gone already. Whoever needs the status
would wait as long, and a machine that goes away would end the process with another status.

The limit begins when Python begins to end. What a program does before that is its own business: a `finally` that the
exception passes, or whatever follows if the program catches it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

LAST_RESORT = 2.0
"""Seconds after the limit at which the system ends the process, where Python's threads cannot run any more."""


_limit: tuple[int, float, Callable[[], object]] | None = None
_process = 0  # The one that has set the limit, which its forked children do not have.
_begun = False


def limit_end(status: int, seconds: float, before: Callable[[], object] = lambda: None) -> None:
    """Ends this process with `status`, after a short `before`, if it lives `seconds` after Python begins to end."""
    global _limit, _process
    _limit, _process = (status, seconds, before), os.getpid()
    # Where `concurrent.futures` registers too: these functions run before Python waits for threads. Without that the
    # limit begins with the exit functions, when all threads have ended.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # Python has begun to end.
            register(begin)
    atexit.unregister(begin)
    atexit.register(begin)


def no_limit() -> None:
    """Takes the limit back: the program goes on."""
    global _limit
    _limit = None


def begin() -> None:
    """Python begins to end; further calls do nothing."""
    global _begun
    if _limit is None or _begun or _process != os.getpid():
        return
    _begun = True
    started(_end_at, "keras_preempt-end-limit", *_limit)
    status, seconds, _ = _limit
    with contextlib.suppress(Exception):  # Another system than the one whose structures these are.
        _ended_by_the_system(status, seconds + LAST_RESORT)


def _end_at(status: int, seconds: float, before: Callable[[], object]) -> None:
    time.sleep(seconds)
    with contextlib.suppress(Exception):
        before()
    names = [
        each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()
    ]
    logger.error(
        "Python has not come to its end within %.0f s%s. This process ends now, with status %d.",
        seconds,
        f"; it waits for {', '.join(names[:5])}" if names else "",
        status,
    )
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # It may be closed, or any object of the program's.
            stream.flush()
    os._exit(status)


# -- A timer of the system's, which needs no lock of Python's -----------------------------------------------

_SIGEV_THREAD = 2
_CLOCK_MONOTONIC = 1


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of 64-bit Linux: a function that a thread of the C library calls with a number."""

    _fields_ = (
        ("value", ctypes.c_long),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


def _ended_by_the_system(status: int, seconds: float) -> None:
    """Has the C library call `_exit(status)` after so many seconds; faulthandler's timer would end with status 1."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "timer_create"):  # Before glibc 2.34 in a library of its own.
        library = ctypes.CDLL("librt.so.1")
    end = ctypes.cast(ctypes.CDLL(None)["_exit"], ctypes.c_void_p)
    event = _SignalEvent(value=status, notify=_SIGEV_THREAD, function=end)
    timer = ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        # `struct itimerspec`: the interval (none) and the time, each in seconds and nanoseconds.
        times = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
        library.timer_settime(timer, 0, ctypes.byref(times), None)
