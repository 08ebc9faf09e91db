"""The worker processes of a DataLoader do not hear the signals that end a job, and leave no files behind.

Slurm, systemd and a shell send a signal to all processes of a job. It is a notice to the one that trains, which saves
and then ends its workers; without them it could not even finish its step. torch has a worker end at SIGTERM, and the
process that trains fail at that. So workers are started with these signals blocked. When the process that trains is
gone, a worker notices within seconds and ends.

A worker has sockets in a temporary directory. One of its own would stay when it is killed, as it is where it still
works when the process ends. So it gets that of the process that trains, which is removed at the end of that process; if
that was killed, by the last of its workers.

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
from multiprocessing import util
from typing import Any

from torch.utils.data import DataLoader

from keras_preempt.backend.keras.replacing import Replacements

_NOTICES = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_AFTER_DIRECTORY = -101
"""The priority of what `multiprocessing` does at the end of a process after it has removed its temporary directory."""

_started: weakref.WeakSet[Any] = weakref.WeakSet()
"""The workers that do not hear SIGTERM, by which Python ends those that are left when a process ends."""


@contextlib.contextmanager
def deaf_to_notices(loader: Any) -> Iterator[None]:
    """Blocks these signals in processes and threads that this thread starts for a loader within the block."""
    if getattr(loader, "num_workers", 0):
        _share_temporary_directory()
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


class _Directory:
    """The temporary directory of the process that trains. In each process forked from it, its end is looked after."""

    def __init__(self, path: str) -> None:
        self.path = path
        util.register_after_fork(self, _Directory.remove_at_end)

    def remove_at_end(self) -> None:
        # After the sockets in it, whose priority is 0.
        util.Finalize(None, self._remove_if_last, args=(os.getppid(),), exitpriority=-100)

    def _remove_if_last(self, process: int) -> None:
        if os.getppid() != process:
            with contextlib.suppress(OSError):  # Another worker is there still, or has removed it.
                os.rmdir(self.path)


_directory: _Directory | None = None


def _share_temporary_directory() -> None:
    """Makes the directory that processes begun by `multiprocessing` will have in common with this one."""
    global _directory
    with contextlib.suppress(OSError):  # A worker that needs one will say so.
        path = util.get_temp_dir()
        if _directory is None or _directory.path != path:
            _directory = _Directory(path)


def _end_workers(process: int) -> None:
    left = [each for each in _started if each.is_alive()] if os.getpid() == process else []
    if left:
        # Those that are killed leave their sockets to this process: a signal must not end it before it removes them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
        util.Finalize(
            None, signal.pthread_sigmask, args=(signal.SIG_SETMASK, before), exitpriority=_AFTER_DIRECTORY
        )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # For torch the end of a worker is an error.
        for each in left:
            each.kill()


def _install(replacements: Replacements) -> None:
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def iterate_deaf(loader: DataLoader[Any]) -> Any:
        with deaf_to_notices(loader):
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
