"""The file by which somebody asks a running job for a save: there until the job has seen it.

It is addressed to one start of the job, so that one that was left behind never means a later start. Its answer is in
the events of that start.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable
from keras_preempt.checkpoint.fields import of_file
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.store import Store

_ATTEMPTS = 10  # each one that fails means that a request was taken, or another one made, in between

_LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class SaveRequest:
    """A request for a save.

    Attributes:
        id: Tells it from all others.
        incarnation: The start of the job that is asked.
        asked_at: When, in seconds since 1970, as the clock of the asking machine has it. For people.
        asked_from: The name of that machine.
    """

    id: str
    incarnation: int
    asked_at: float
    asked_from: str


def read(store: Store) -> SaveRequest | None:
    """Returns the request that stands; None if there is none.

    Raises:
        CorruptCheckpoint: There is a file of that name that is none.
        UnsupportedFormat: It was written in a newer format.
        StoreUnavailable: The storage failed, or gives no permission.
    """
    try:
        store.stat(SAVE_REQUEST)  # Nearly always, that is all.
        body = documents.read(store, SAVE_REQUEST)
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


def make(store: Store, incarnation: int, asked_from: str) -> tuple[SaveRequest, bool]:
    """Asks a start of the job for a save, or joins the request that stands.

    Args:
        store: The directory of the run.
        incarnation: The number of its newest start.
        asked_from: The name of this machine.

    Returns:
        The request that stands now, and whether it is this one: somebody else's is answered for both.

    Raises:
        CorruptCheckpoint: There is a file of that name that is no request.
        UnsupportedFormat: It was written in a newer format.
        StoreUnavailable: The storage failed, or gives no permission.
    """
    request = SaveRequest(secrets.token_hex(8), incarnation, time.time(), asked_from[:_LONGEST])
    data = documents.encode({"format": documents.FORMAT, **asdict(request)})
    for _ in range(_ATTEMPTS):
        try:
            store.create(SAVE_REQUEST, data)
        except AlreadyExists:
            standing = read(store)
            if standing is not None and standing.incarnation >= incarnation:
                return standing, False
            if standing is not None:  # It was left behind by somebody who asked an earlier start.
                remove(store, standing)
            continue
        return request, True
    raise StoreUnavailable(
        f"Expected to put {SAVE_REQUEST} into {store.url}. Received: {_ATTEMPTS} requests by others in between. Try "
        "again."
    )


def remove(store: Store, request: SaveRequest) -> bool:
    """Removes a request, if it still stands; returns whether it did.

    Raises:
        CorruptCheckpoint: See `read`.
        StoreUnavailable: The storage failed, or gives no permission.
    """
    if read(store) != request:
        return False
    try:
        store.delete(SAVE_REQUEST)
    except NotFound:
        return False
    return True
