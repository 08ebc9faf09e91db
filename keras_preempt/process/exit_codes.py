"""The exit statuses of a training process, and what it takes to end with them.

A launcher sees nothing but that number. Python's own is 1 for every uncaught exception. Where it has to say more, the
exception carries the status, and `sys.excepthook` ends the process with it, once the traceback is shown.

When it ends, Python flushes standard output and error. Where that fails (a full disk, a pipe whose reader is gone) it
ends with 120, whatever the program's status. The status that tells a preemption from an error matters more than lines
that nobody can read, so a stream that can no longer be written to is redirected to /dev/null.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

logger = logging.getLogger("keras_preempt")

EXIT_RESTART = 75
"""EX_TEMPFAIL of sysexits.h: below 128, so never mistaken for a signal; systemd and LSF recipes use it."""

EXIT_NOT_SAVED = 74
"""EX_IOERR of sysexits.h: preempted, and the checkpoint could not be committed."""

EXIT_WORKER_LOST = 69
"""EX_UNAVAILABLE of sysexits.h: another worker was lost without a notice; what TensorFlow calls UnavailableError."""

EXIT_INTERRUPTED = 130
"""128 + SIGINT: what a shell says of a program that Ctrl-C has ended. Nobody should start it again."""

EXIT_RESTART_GCE = 143
"""128 + SIGTERM: what TensorFlow's own handler exits with on Google Compute Engine."""

EXIT_RESTART_TPU = 42
"""What TensorFlow's own handler exits with on a TPU coordinator, once the workers are gone."""

RESTART_CODES = (EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU)
"""Those that always ask for a restart. `EXIT_WORKER_LOST` does so if there is a checkpoint."""


def signal_name(number: int) -> str:
    """Such as "SIGKILL"; "signal 77" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- The status of an error that nobody catches ------------------------------------------------------------

_ATTRIBUTE = "_keras_preempt_exit_status"
_QUIET = "_keras_preempt_quiet"

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def exits_with(error: BaseException, status: int) -> None:
    """Makes the process end with a status if this error, or one that is raised from it, stays uncaught."""
    setattr(error, _ATTRIBUTE, status)
    _install()


def exits_by(judge: Callable[[BaseException], int | None]) -> None:
    """Maps uncaught exceptions that carry no status to exit codes; None leaves an exception to others."""
    if judge not in _judges:
        _judges.append(judge)
    _install()


_judges: list[Callable[[BaseException], int | None]] = []


def _install() -> None:
    if not isinstance(sys.excepthook, _ExitStatus):
        sys.excepthook = _ExitStatus(sys.excepthook)


def exit_status_of(error: BaseException | None) -> int | None:
    """The exit status of an error: its own, or that of an error that it was raised from or while handling."""
    chain: list[BaseException] = []
    while error is not None and not any(error is each for each in chain):
        chain.append(error)
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    carried = (getattr(each, _ATTRIBUTE, None) for each in chain)
    # Lazily: a judge may write to the log.
    judged = (judge(each) for each in chain for judge in _judges)
    return next((status for status in itertools.chain(carried, judged) if isinstance(status, int)), None)


def leaves_quietly(error: KeyboardInterrupt) -> None:
    """Makes Python show no traceback if this error stays uncaught. The process still ends by SIGINT."""
    setattr(error, _QUIET, True)
    _install()


class _ExitStatus:
    """A hook for errors that leave the program: calls the hook that was there before, then ends with the status."""

    def __init__(self, earlier: _Hook) -> None:
        self._earlier = earlier

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if getattr(error, _QUIET, False):
            keep_exit_status()
            return
        status = exit_status_of(error)
        if status is None:
            self._earlier(kind, error, traceback)
            return
        # It may be the program's own hook, and standard error may be gone.
        with contextlib.suppress(Exception):
            self._earlier(kind, error, traceback)
        keep_exit_status()
        raise SystemExit(status)  # Python accepts this from its hook and ends as after sys.exit.


# -- Standard streams that cannot be written any more -----------------------------------------------------

_about_to_end = False


def keep_exit_status() -> None:
    """Keeps either stream from changing the exit status from now on. Called when that is decided."""
    global _about_to_end
    _about_to_end = True
    for name, words in (("stdout", "output"), ("stderr", "error")):
        stream: TextIO | None = getattr(sys, name)
        if stream is None or _works(stream):  # None: it was closed when the process began.
            continue
        with contextlib.suppress(Exception):
            # The descriptor as well: what the stream still holds then goes away without an error.
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, stream.fileno())
            finally:
                os.close(null)
        if not _works(stream):
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        logger.warning("Standard %s cannot be written any more: what is still to come is lost.", words)


def _works(stream: TextIO) -> bool:
    try:
        if not getattr(stream, "closed", False):  # Python does not flush one that the program has closed.
            stream.flush()
    except Exception:  # The program may have put any object there.
        return False
    return True


# Exit functions run from the last to the first, and this is an early one: the program's own may have written since.
atexit.register(lambda: keep_exit_status() if _about_to_end else None)
