"""Where the log lines of this package go when the program has not said."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable

logger = logging.getLogger("keras_preempt")


def show() -> None:
    """Shows log lines on standard error, unless the program has set up logging itself.

    What happens to a run (which checkpoint it continues from, why it ends) must be seen without any set-up. And a
    handler of the program's that raises must not end a save, or the thread that hears notices.
    """
    if not isinstance(logger.handle, _Guarded):
        logger.handle = _Guarded(logger.handle)  # type: ignore[method-assign]
    if logger.level != logging.NOTSET or (logger.hasHandlers() and not _set_up_in_passing()):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("keras_preempt: %(message)s"))
    handler.addFilter(_once)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Guarded:
    """`Logger.handle`, without the errors of handlers and filters; the first is told on standard error."""

    def __init__(self, handle: Callable[[logging.LogRecord], None]) -> None:
        self._handle = handle
        self._told = False

    def __call__(self, record: logging.LogRecord) -> None:
        try:
            self._handle(record)
        except Exception as error:
            if self._told:
                return
            self._told = True
            with contextlib.suppress(Exception):  # There may be no standard error either.
                sys.stderr.write(
                    f"keras_preempt: a logging handler of this program has failed ({type(error).__name__}: {error}). "
                    f"Its log may lack lines, such as this one: {record.getMessage()}\n"
                )


def _once(record: logging.LogRecord) -> bool:
    """Whether to show a line here: not if the program has set up logging since, which shows it then."""
    if not logging.getLogger().handlers:
        return True
    if _set_up_in_passing():
        logger.propagate = False  # Also for this very record: the logger asks after its own handlers.
    return not logger.propagate


def _set_up_in_passing() -> bool:
    """Whether logging is as one call of `logging.info` leaves it, or absl; TensorFlow does either on its way."""
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
