"""Saves that somebody asks for from outside: `keras-preempt save DIR`.

One thread of worker 0 looks every few seconds for one file in the directory of the run (see
`checkpoint/save_request.py`). If it is there, the thread takes it and calls a round for a save after which training
continues, like a save that is due by the clock. How that ended is told in the events. The hooks of training know
nothing of it, and the coordination service is asked only for a request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from keras_preempt.agreement.member import ROUNDS_PER_REASON
from keras_preempt.checkpoint import save_request
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable, one_line
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.checkpoint.save_request import SaveRequest
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store

logger = logging.getLogger("keras_preempt")

LOCAL_SECONDS = 5.0
"""Seconds between two looks for a request in a directory, unless the user says so ..."""

BUCKET_SECONDS = 60.0
"""... and in a bucket, where each look is one request for the metadata of an object: 1,440 a day."""

_AGAIN = 1.0
"""Seconds after which a round is called again, if nothing has come of the one before."""

_STOP_WAIT = 2.0
"""Seconds that the end of the fit waits for a look that is under way; that look ends by itself."""


def interval(save_on_request: object, store: Store) -> float | None:
    """Returns the seconds between two looks for a request; None for never.

    Args:
        save_on_request: "auto", a time such as "30s" or a `datetime.timedelta`, or None.
        store: Where the requests come.

    Raises:
        ValueError: It is none of these.
    """
    if save_on_request is None:
        return None
    if isinstance(save_on_request, str) and save_on_request == "auto":
        return LOCAL_SECONDS if isinstance(store, LocalStore) else BUCKET_SECONDS
    seconds = seconds_of(save_on_request)
    if seconds is None:
        raise ValueError(
            "Expected save_on_request to be 'auto', a time such as '30s' or a timedelta, or None to look for no "
            f"requests. Received: {save_on_request!r}."
        )
    return seconds


@dataclass
class _Taken:
    """A request that is being answered.

    Attributes:
        request: What was asked.
        since: When it was taken, in monotonic seconds.
        rounds: Those that were called for it.
        saving: Whether a save of a later state is on its way.
    """

    request: SaveRequest
    since: float
    rounds: set[int] = field(default_factory=set)
    saving: bool = False


class Requests:
    """Looks for requests, and answers them. From now on, until `stop`.

    Args:
        store: The directory of the run.
        incarnation: The number of this start.
        seconds: Between two looks.
        call: Calls a round for a save, unless one stands; returns its number if it has.
        leaving: Whether this worker has to leave, sooner or later. No request is looked for then: it saves by itself.
        emit: Writes an event.
    """

    def __init__(
        self,
        store: Store,
        incarnation: int,
        seconds: float,
        call: Callable[[], int | None],
        leaving: Callable[[], bool],
        emit: Callable[..., None],
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._seconds = seconds
        self._call = call
        self._leaving = leaving
        self._emit = emit
        self._changed = threading.Condition()
        self._stopped = False
        self._taken: _Taken | None = None
        self._seen = ""  # The id of the last request that was taken.
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="keras_preempt-requests", daemon=True)
        self._thread.start()

    def captured(self) -> None:
        """The state is captured for a save, which answers the request: no further round is called for it meanwhile."""
        with self._changed:
            if self._taken is not None:
                self._taken.saving = True

    def saved(self, captured_at: float, name: str | None) -> None:
        """A save has ended, in whichever thread; it answers the request that was there when its state was captured.

        Args:
            captured_at: When that was, in monotonic seconds.
            name: The folder of the checkpoint; None if there is none.
        """
        with self._changed:
            taken = self._taken
            if taken is None or captured_at < taken.since:
                return
            if name is None and self._leaving():
                taken.saving = False
                return  # It made way for the save with which this worker leaves.
            self._answer(name, "" if name else "the save has failed; the log of the job says why")

    def stop(self, why: str) -> None:
        """Ends the thread. Can be called twice.

        Args:
            why: Why the fit is over, for a request that is not answered yet.
        """
        with self._changed:
            self._stopped = True
            if self._taken is not None:
                self._answer(None, f"the fit has ended before that: {one_line(why)}")
            self._changed.notify_all()
        self._thread.join(_STOP_WAIT)

    # -- The thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait(self._seconds):
            if self._leaving():
                continue
            try:
                self._look()
            except StoreUnavailable as error:
                self._tell_once("looking", "Requests for a save cannot be looked for: %s", error)
            except CheckpointError as error:
                self._tell_once(
                    "foreign",
                    "%s is ignored, because keras-preempt save did not write it: %s",
                    SAVE_REQUEST,
                    error,
                )
            while self._taken is not None and not self._stopped:
                self._call_round()

    def _wait(self, seconds: float) -> bool:
        """Waits; returns whether to go on."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._stopped, min(seconds, threading.TIMEOUT_MAX))

    def _look(self) -> None:
        request = save_request.read(self._store)
        if request is None or request.id == self._seen or request.incarnation > self._incarnation:
            return
        self._seen = request.id
        if request.incarnation < self._incarnation:
            logger.info("A request for a save is removed: it was made for start %d.", request.incarnation)
        else:
            logger.info("A save was asked for, from %s.", one_line(request.asked_from))
            self._emit("requested", id=request.id, asked_at=request.asked_at)
            with self._changed:
                self._taken = _Taken(request, time.monotonic())
        try:
            save_request.remove(self._store, request)
        except CheckpointError as error:
            logger.warning(
                "%s cannot be removed; remove it, or nobody can ask again: %s", SAVE_REQUEST, error
            )

    def _call_round(self) -> None:
        number = None if self._is_saving() else self._call()
        with self._changed:
            taken = self._taken
            if taken is None:
                return
            if number is not None:
                taken.rounds.add(number)
            if len(taken.rounds) > ROUNDS_PER_REASON:
                self._answer(None, "the workers could not agree on a step; the log of the job says why")
                return
            self._changed.wait_for(lambda: self._stopped or self._taken is None, _AGAIN)

    def _is_saving(self) -> bool:
        with self._changed:
            return self._taken is not None and self._taken.saving

    def _answer(self, checkpoint: str | None, reason: str) -> None:
        """Tells what has come of the request; with the lock held."""
        assert self._taken is not None
        self._emit("answered", id=self._taken.request.id, checkpoint=checkpoint, reason=reason)
        self._taken = None
        self._changed.notify_all()

    def _tell_once(self, about: str, message: str, *arguments: object) -> None:
        if about not in self._told:
            self._told.add(about)
            logger.warning(message, *arguments)
