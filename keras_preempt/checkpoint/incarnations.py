"""Incarnations: every start of a job has a number, which fences it off from later and earlier starts.

Every start claims the next number by creating a file that must not exist yet. A process that finds a higher number
than its own has been replaced, by a restart or by a job started twice, and commits nothing from then on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import AlreadyExists, CorruptCheckpoint, StoreUnavailable
from keras_preempt.checkpoint.layout import (
    INCARNATIONS,
    LATEST_INCARNATION,
    incarnation_file,
    parse_incarnation,
)
from keras_preempt.checkpoint.storage.store import Store

ALONE = "alone"
"""The field of a claim in which one of several workers says which one it is, if it trains a model of its own."""

_ATTEMPTS = 1000  # each one that fails means that another start has claimed a number in between


def latest(store: Store) -> int:
    """Returns the highest number that was claimed, 0 if none was."""
    numbers = (parse_incarnation(name) for name in store.children(INCARNATIONS))
    return max((number for number in numbers if number is not None), default=0)


def claim(store: Store, info: Mapping[str, Any]) -> int:
    """Claims the next number, 1 or more, which no other start has.

    `info` is JSON to keep with the claim, such as who claims it, without 'format', 'incarnation', 'token' and
    'claimed_at'. Raises `CorruptCheckpoint` if the highest possible number is taken, and `StoreUnavailable` if the
    storage failed or other starts were faster every time.
    """
    number = latest(store)
    for _ in range(_ATTEMPTS):
        number = max(number, latest(store)) + 1
        if number > LATEST_INCARNATION:
            raise CorruptCheckpoint(incarnation_file(number - 1), "the highest number that there is")
        body = {
            **info,
            "format": documents.FORMAT,
            "incarnation": number,
            "token": secrets.token_hex(16),
            "claimed_at": time.time(),
        }
        try:
            store.create(incarnation_file(number), documents.encode_document(body))
        except AlreadyExists:
            continue
        return number
    raise StoreUnavailable(
        f"Expected to claim an incarnation in {store.url}. Received: {_ATTEMPTS} claims by others in "
        "between. Stop the other jobs that use this directory."
    )


def read_claim(store: Store, number: int) -> dict[str, Any]:
    """Returns a claim: its `info`, 'token', 'claimed_at' (seconds since the epoch), 'incarnation', 'format'."""
    return documents.read_document(store, incarnation_file(number))
