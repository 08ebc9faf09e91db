"""Where the log lines of this package go unless the program configures logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import TextIO

logger = logging.getLogger("keras_preempt")


def show() -> None:
    """Shows log lines on standard error, unless the program has configured logging.

    What happens to a run (which checkpoint it continues from, why it ends) must be visible by default. And if a handler
    of the program raises, that must not end a save, or the thread that listens for notices.
    """
    if not isinstance(logger.handle, _Guarded):
        logger.handle = _Guarded(logger.handle)  # type: ignore[method-assign]
    if logger.level != logging.NOTSET or (logger.hasHandlers() and not _configured_by_accident()):
        return
    handler = _Lines()
    handler.setFormatter(logging.Formatter("keras_preempt: %(message)s"))
    handler.addFilter(_once)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Guarded:
    """`Logger.handle` without the errors of handlers and filters; the first one is reported on standard error."""

    def __init__(self, handle: Callable[[logging.LogRecord], None]) -> None:
        self._handle = handle
        self._reported = False

    def __call__(self, record: logging.LogRecord) -> None:
        try:
            self._handle(record)
        except Exception as error:
            if self._reported:
                return
            self._reported = True
            with contextlib.suppress(Exception):  # There may be no standard error either.
                sys.stderr.write(
                    f"keras_preempt: a logging handler of this program has failed ({type(error).__name__}: {error}). "
                    f"Its log may lack lines, such as this one: {record.getMessage()}\n"
                )


_bar_drawn_at: Callable[[], float] | None = None
_left_bar_at = 0.0


def watch_bar(drawn_at: Callable[[], float] | None) -> None:
    """Makes each log line begin on a new line while a progress bar is drawn on standard output.

    `drawn_at` returns when it was last drawn, in seconds, or 0 if standard output begins a new line; None: no bar.
    """
    global _bar_drawn_at
    _bar_drawn_at = drawn_at


def leave_bar(stream: TextIO) -> None:
    """Begins a new line if `stream` is about to write to the line of the bar."""
    global _left_bar_at
    drawn_at = _bar_drawn_at() if _bar_drawn_at else 0.0
    if drawn_at and drawn_at != _left_bar_at and _same_place(stream, sys.stdout):
        stream.write("\n")
        _left_bar_at = drawn_at


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # Not generic in Python 3.10.
    """Writes each record on a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        leave_bar(self.stream)
        super().emit(record)


def _same_place(one: TextIO, other: TextIO) -> bool:
    """Whether two streams write to one terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError, AttributeError):  # Replaced by something that is not a file.
        return one is other


def _once(record: logging.LogRecord) -> bool:
    """Whether to show a line here: not if the program has configured logging since, which then shows it."""
    if not logging.getLogger().handlers:
        return True
    if _configured_by_accident():
        logger.propagate = False  # For this record too: the logger looks at this after its own handlers.
    return not logger.propagate


def _configured_by_accident() -> bool:
    """Whether only `logging.info` or absl has configured logging, as a side effect; TensorFlow may call either."""
    root = logging.getLogger()
    only = root.handlers[0] if len(root.handlers) == 1 else None
    if only is None or type(only).__module__.startswith("absl."):
        return only is not None
    by_default = logging.Formatter(logging.BASIC_FORMAT)
    probe = logging.makeLogRecord({"msg": "a line"})
    return (
        type(only) is logging.StreamHandler
        and root.level == logging.WARNING
        and only.format(probe) == by_default.format(probe)
    )
