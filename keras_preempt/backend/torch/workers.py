"""The worker processes of a DataLoader do not hear the signals that end a job.

Slurm, systemd and a shell send a signal to all processes of a job. It is a notice to the one that trains, which saves
and then ends its workers; without them it could not even finish its step. torch has a worker end at SIGTERM, and the
process that trains fail at that. So workers are started with these signals blocked. When the process that trains is
gone, a worker notices and ends.

Verified with torch 2.6.0 to 2.15.0; tests/backend/torch/test_workers.py has a worker that gets SIGTERM.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from keras_preempt.backend.keras.replacing import Replacements

_NOTICES = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


_started: weakref.WeakSet[Any] = weakref.WeakSet()
"""The workers that do not hear SIGTERM, by which Python ends those that are left when a process ends."""


@contextlib.contextmanager
def deaf_to_notices() -> Iterator[None]:
    """Blocks these signals in processes and threads that this thread starts within the block."""
    known = set(multiprocessing.active_children())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if begun := set(multiprocessing.active_children()) - known:
            atexit.unregister(_end_workers)
            atexit.register(
                _end_workers, os.getpid()
            )  # Last, so that it is called before Python waits for them.
            _started.update(begun)


def _end_workers(process: int) -> None:
    left = [each for each in _started if each.is_alive()] if os.getpid() == process else []
    if left:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # For torch the end of a worker is an error.
        for each in left:
            each.kill()


def _install(replacements: Replacements) -> None:
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def iterate_deaf(loader: DataLoader[Any]) -> Any:
        with deaf_to_notices():
            return iterate(loader)

    replacements.replace(DataLoader, "__iter__", iterate_deaf)


_replacements = Replacements(_install)


def keep_deaf() -> Callable[[], None]:
    """Has every DataLoader start its workers so; Keras makes iterators before a fit calls its callbacks.

    Returns a function that ends that; further calls of it do nothing.
    """
    _replacements.acquire()
    held = [True]

    def end() -> None:
        if held and held.pop():
            _replacements.release()

    return end
