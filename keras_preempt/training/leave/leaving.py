"""How a process leaves after its fit was preempted and, if possible, saved."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from keras_preempt.backend import pipelines
from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.notices import Notice
from keras_preempt.notices.platform import COORDINATION_KEY
from keras_preempt.notices.termination import Preempted, Termination
from keras_preempt.process import end_limit
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, keep_exit_status, leaves_quietly

logger = logging.getLogger("keras_preempt")

WORKERS_GONE_TIMEOUT = 300.0
"""Seconds that a coordinator waits for its workers to leave before it exits: machines with accelerators have up to
a minute of grace after a notice, and may take longer to shut down."""

END_SECONDS = 18.0
"""Seconds that Python has to end a process that has said its status, if the machine is not gone before."""

LAST_END_SECONDS = 26.0
"""The same for process 0 of several: with it goes the service that the others are connected to."""

_BEFORE_DEADLINE = 1.0 + end_limit.LAST_RESORT  # seconds


def end_limit_of(place: Place, left: float | None) -> float:
    """Returns how many seconds Python has to end this process, if `left` are left until the machine goes."""
    job = backend().job()  # Its processes may train models of their own.
    leads = job.process == 0 if job is not None else place.members > 1 and place.member == 0
    limit = LAST_END_SECONDS if leads else END_SECONDS
    return limit if left is None else max(1.0, min(limit, left - _BEFORE_DEADLINE))


@contextlib.contextmanager
def whatever_happens(what: str) -> Iterator[None]:
    """Continues to leave after an error in the block: the exit status says whether the checkpoint is committed."""
    try:
        yield
    except Exception:
        logger.exception("%s has failed; this process leaves all the same.", what)


def wait_for_workers(termination: Termination, place: Place, notices: Iterable[Notice]) -> None:
    """Waits until the workers that this process coordinates are gone, if one of them was under notice."""
    goes = any(notice.source == COORDINATION_KEY for notice in notices)
    if not (termination.waits_for_workers and goes):
        return
    logger.warning("Waiting for at most %.0f s until the workers are gone.", WORKERS_GONE_TIMEOUT)
    if not place.workers.wait_until_gone(WORKERS_GONE_TIMEOUT):
        logger.error("The workers are still there. Whoever starts this process again may lose them soon.")


def end_process(termination: Termination, code: int, what: str, limit: float = END_SECONDS) -> NoReturn:
    """Ends the process, or the fit. Everything that was started for the fit has ended.

    Raises SystemExit; or Preempted, with the message `what`, if there is an exit_fn and it has returned. Python has
    `limit` seconds to end the process; see `end_limit_of`.
    """
    if termination.exit_fn is not None:
        try:
            termination.exit_fn()
        except SystemExit as ends:
            if isinstance(ends.code, int):
                end_limit.limit_end(ends.code, limit, backend().announce_end)
            raise
        raise Preempted(f"The training was preempted; {what}")
    logger.warning("Preempted: exiting with status %d.", code)
    keep_exit_status()
    _end_soon()
    end_limit.limit_end(code, limit, backend().announce_end)
    raise SystemExit(code)


def interrupt(what: str, limit: float = END_SECONDS) -> NoReturn:
    """Raises KeyboardInterrupt, as Ctrl-C does. Everything that was started for the fit has ended.

    A script that does not catch it ends by SIGINT, without a traceback. The arguments are those of `end_process`.
    """
    logger.warning("Interrupted: %s", what)
    error = KeyboardInterrupt(f"Training was interrupted; {what}")
    leaves_quietly(error)
    _end_soon()
    end_limit.limit_end(EXIT_INTERRUPTED, limit, backend().announce_end)
    raise error


_kept: list[Any] = []


def _end_soon() -> None:
    # Only prepared here: a program that catches the exception continues as before.
    with whatever_happens("Keeping the iterators of the input"):
        _kept[:] = pipelines.iterators()
    with whatever_happens("Leaving the job at the end of the process"):
        backend().leave_together()
    atexit.register(_at_the_end)


def _at_the_end() -> None:
    # The interpreter would look for garbage among all of TensorFlow's objects, for a second or more.
    gc.freeze()
    _keep_iterators()


def _keep_iterators() -> None:
    with whatever_happens("Keeping the iterators of the input"):
        # An iterator may take a minute to drop. Nobody drops what has one reference more than there are.
        for each in _kept or pipelines.iterators():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def stay() -> None:
    """Undoes what `_end_soon` prepared: this process trains, maybe again after its program caught the exception."""
    _kept.clear()
    end_limit.no_limit()
    atexit.unregister(_keep_iterators)
    atexit.register(_keep_iterators)
