"""The exit status of an error that nobody catches: Python's own is 1 for all of them.

Whoever starts a process reads nothing but that number. So where it has to say more, the error carries it, and the
hook that Python calls for an error that leaves the program ends the process with it, once the traceback is shown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import TracebackType

from keras_preempt.process.standard_streams import keep_exit_status

_ATTRIBUTE = "_keras_preempt_exit_status"

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def exits_with(error: BaseException, status: int) -> None:
    """Sees to it that the process ends with a status, if this error, or one that comes of it, leaves the program.

    Args:
        error: The error, which is about to be raised.
        status: From 1 to 255.
    """
    setattr(error, _ATTRIBUTE, status)
    _install()


def exits_by(judge: Callable[[BaseException], int | None]) -> None:
    """Sees to it that an error that leaves the program, and carries no status, is judged.

    Args:
        judge: Returns the status for an error; None for one that it has nothing to say about.
    """
    if judge not in _judges:
        _judges.append(judge)
    _install()


_judges: list[Callable[[BaseException], int | None]] = []


def _install() -> None:
    if not isinstance(sys.excepthook, _ExitStatus):
        sys.excepthook = _ExitStatus(sys.excepthook)


def status_of(error: BaseException | None) -> int | None:
    """The exit status that an error carries, or that one carries during which or because of which it was raised."""
    chain = list(_chain(error))
    carried = [getattr(each, _ATTRIBUTE, None) for each in chain]
    judged = (judge(each) for each in chain for judge in _judges)
    return next((status for status in (*carried, *judged) if isinstance(status, int)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return None


class _ExitStatus:
    """Python's hook for errors that leave the program, or another's, and then the exit status."""

    def __init__(self, earlier: _Hook) -> None:
        self._earlier = earlier

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        status = status_of(error)
        if status is None:
            self._earlier(kind, error, traceback)
            return
        with contextlib.suppress(Exception):  # It may be the program's own, and standard error may be gone.
            self._earlier(kind, error, traceback)
        keep_exit_status()
        raise SystemExit(status)  # Python takes this from its hook, and ends as after sys.exit.
