"""Standard output and error, seen to when a process is about to end with a status that somebody reads.

At its end Python flushes both, and where that fails (a full disk, a pipe whose reader is gone) it ends with 120,
whatever the program has said. The status that tells a preemption from an error is worth more than lines that nobody
can read: a stream that cannot be written any more is turned to nowhere.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from typing import TextIO

logger = logging.getLogger("keras_preempt")

_about_to_end = False


def keep_exit_status() -> None:
    """Sees to it that neither stream changes the exit status any more. To be called when that is decided."""
    global _about_to_end
    _about_to_end = True
    _settle()


def _settle() -> None:
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None or _works(stream):  # None: it was closed when the process began.
            continue
        _turn_to_nowhere(name, stream)
        logger.warning("Standard %s cannot be written any more: what is still to come is lost.", _NAMES[name])


_NAMES = {"stdout": "output", "stderr": "error"}


def _works(stream: TextIO) -> bool:
    try:
        if not getattr(stream, "closed", False):  # Python leaves one alone that the program has closed.
            stream.flush()
    except Exception:  # The program may have put anything there.
        return False
    return True


def _turn_to_nowhere(name: str, stream: TextIO) -> None:
    with contextlib.suppress(Exception):
        # The descriptor as well: what the stream still holds then goes away without an error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
    if not _works(stream):
        setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _settle_again() -> None:
    """What was written since, by the program's own functions for the end, is flushed last."""
    if _about_to_end:
        _settle()


atexit.register(_settle_again)  # Functions for the end run from the last to the first: this is an early one.
