"""Saves that are requested from outside, by `keras-preempt save DIR`.

A request is one file in the directory of the run, which is there until the job has taken it. It is addressed to one
start of the job, so a file that was left behind is not carried out by a later start. One thread of worker 0 looks for
it every few seconds, removes it, and calls a round for a save after which training continues, like a save that is due
by the clock. The answer is an event of that start. The hooks of training are not involved.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from keras_preempt.agreement.member import ROUNDS_PER_REASON
from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.documents import of_file
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    NotFound,
    StoreUnavailable,
    one_line,
)
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.checkpoint.storage.store import Store

logger = logging.getLogger("keras_preempt")

LOCAL_SECONDS = 5.0
"""Seconds between two looks for a request in a directory, unless the user says so ..."""

BUCKET_SECONDS = 60.0
"""... and in a bucket, where each look is one request for the metadata of an object: 1,440 a day."""

_RETRY_SECONDS = 1.0  # until a round is called again, if the one before came to nothing
_STOP_SECONDS = 2.0  # that the end of the fit waits for a look that is under way
_ATTEMPTS = 10  # each one that fails means that a request was taken, or another one made, in between
_LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class SaveRequest:
    """A request to one start of the job; `asked_at` is in seconds since 1970, by the clock of `asked_from`."""

    id: str
    incarnation: int
    asked_at: float
    asked_from: str


def pending_request(store: Store) -> SaveRequest | None:
    """Returns the pending request; raises `CorruptCheckpoint` if the file is not a request."""
    try:
        store.stat(SAVE_REQUEST)  # Nearly always, that is all.
        body = documents.read_document(store, SAVE_REQUEST)
    except NotFound:
        return None
    fields = of_file(body, SAVE_REQUEST)
    fields.integer("format")
    request = SaveRequest(
        fields.text("id", longest=_LONGEST),
        fields.integer("incarnation", minimum=1),
        fields.number("asked_at"),
        fields.text("asked_from", longest=_LONGEST),
    )
    fields.end()
    return request


def make_request(store: Store, incarnation: int, asked_from: str) -> tuple[SaveRequest, bool]:
    """Requests a save; returns the pending request, and whether it is ours: somebody else's is answered for both."""
    request = SaveRequest(secrets.token_hex(8), incarnation, time.time(), asked_from[:_LONGEST])
    data = documents.encode_document({"format": documents.FORMAT, **asdict(request)})
    for _ in range(_ATTEMPTS):
        try:
            store.create(SAVE_REQUEST, data)
        except AlreadyExists:
            pending = pending_request(store)
            if pending is not None and pending.incarnation >= incarnation:
                return pending, False
            if pending is not None:  # It was left behind by somebody who asked an earlier start.
                remove_request(store, pending)
            continue
        return request, True
    raise StoreUnavailable(
        f"Expected to put {SAVE_REQUEST} into {store.url}. Received: {_ATTEMPTS} requests by others in between. Try "
        "again."
    )


def remove_request(store: Store, request: SaveRequest) -> bool:
    """Removes a request if it is still pending; returns whether it was."""
    try:
        if pending_request(store) == request:
            store.delete(SAVE_REQUEST)
            return True
    except NotFound:
        pass
    return False


def interval(save_on_request: object, store: Store) -> float | None:
    """Returns the seconds between two looks for a request in `store`, as the user set them; None for never."""
    if save_on_request is None:
        return None
    if isinstance(save_on_request, str) and save_on_request == "auto":
        return LOCAL_SECONDS if store.is_local else BUCKET_SECONDS
    seconds = seconds_of(save_on_request)
    if seconds is None:
        raise ValueError(
            "Expected save_on_request to be 'auto', a time such as '30s' or a timedelta, or None to look for no "
            f"requests. Received: {save_on_request!r}."
        )
    return seconds


@dataclass
class _Pending:
    """A request that was taken at `since` (monotonic); `saving`: a save of a later state is under way."""

    request: SaveRequest
    since: float
    rounds: set[int] = field(default_factory=set)
    saving: bool = False


class Requests:
    """Looks for requests and answers them, from now on until `stop`.

    Args:
        store: The directory of the run.
        incarnation: The number of this start.
        seconds: Between two looks.
        call: Calls a round for a save, unless one is under way; returns its number if it did.
        leaving: Whether this worker has to leave, sooner or later. It then saves anyway, and no request is looked for.
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
        self._pending: _Pending | None = None
        self._last_id = ""
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="keras_preempt-requests", daemon=True)
        self._thread.start()

    def captured(self) -> None:
        """The state is captured for a save, which answers the request: no further round is called for it meanwhile."""
        with self._changed:
            if self._pending is not None:
                self._pending.saving = True

    def saved(self, captured_at: float, name: str | None) -> None:
        """A save has ended, in any thread: it answers a request that was taken before its state was captured.

        That was at `captured_at`, in monotonic seconds; `name` is the folder of the checkpoint, None if there is none.
        """
        with self._changed:
            pending = self._pending
            if pending is None or captured_at < pending.since:
                return
            if name is None and self._leaving():
                pending.saving = False
                return  # Cancelled in favour of the final save.
            self._answer(name, "" if name else "the save has failed; the log of the job says why")

    def stop(self, why: str) -> None:
        """Ends the thread, and answers a pending request with `why` the fit is over. Can be called twice."""
        with self._changed:
            self._stopped = True
            if self._pending is not None:
                self._answer(None, f"the fit has ended before that: {one_line(why)}")
            self._changed.notify_all()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, min(self._seconds, threading.TIMEOUT_MAX)):
                    return
            if self._leaving():
                continue
            try:
                self._look()
            except StoreUnavailable as error:
                self._log_once("Requests for a save cannot be looked for: %s", error)
            except CheckpointError as error:
                message = f"{SAVE_REQUEST} is ignored, because keras-preempt save did not write it: %s"
                self._log_once(message, error)
            while self._pending is not None and not self._stopped:
                self._call_round()

    def _look(self) -> None:
        request = pending_request(self._store)
        if request is None or request.id == self._last_id or request.incarnation > self._incarnation:
            return
        self._last_id = request.id
        if request.incarnation < self._incarnation:
            logger.info("A request for a save is removed: it was made for start %d.", request.incarnation)
        else:
            logger.info("A save was requested from %s.", one_line(request.asked_from))
            self._emit("requested", id=request.id, asked_at=request.asked_at)
            with self._changed:
                self._pending = _Pending(request, time.monotonic())
        try:
            remove_request(self._store, request)
        except CheckpointError as error:
            logger.warning(
                "%s cannot be removed; remove it, or nobody can ask again: %s", SAVE_REQUEST, error
            )

    def _call_round(self) -> None:
        pending = self._pending
        number = None if pending is None or pending.saving else self._call()
        with self._changed:
            if (pending := self._pending) is None:
                return
            if number is not None:
                pending.rounds.add(number)
            if len(pending.rounds) > ROUNDS_PER_REASON:
                self._answer(None, "the workers could not agree on a step; the log of the job says why")
                return
            self._changed.wait_for(lambda: self._stopped or self._pending is None, _RETRY_SECONDS)

    def _answer(self, checkpoint: str | None, reason: str) -> None:
        """Reports what has come of the request; called with the lock held."""
        assert self._pending is not None
        self._emit("answered", id=self._pending.request.id, checkpoint=checkpoint, reason=reason)
        self._pending = None
        self._changed.notify_all()

    def _log_once(self, message: str, error: Exception) -> None:
        if message not in self._logged:
            self._logged.add(message)
            logger.warning(message, error)
