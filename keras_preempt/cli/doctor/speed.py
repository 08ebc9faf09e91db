"""Measures how long a save takes, by writing as many bytes in the same way."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from keras_preempt.agreement.grace import MARGIN, reserve
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.doctor.surroundings import Grace
from keras_preempt.cli.terminal import shown_size

_PIECE = 4 << 20  # bytes
_LEAST_PATIENCE = 30.0  # seconds for requests that are in flight when time is up
_LEAST = 0.01  # seconds; shorter times are not measured


@dataclass(frozen=True)
class Measured:
    """A measured save.

    Attributes:
        size: Bytes that were written.
        seconds: How long it took until they were durable.
        whole: Whether all bytes were written in time.
    """

    size: int
    seconds: float
    whole: bool


def measure(store: Store, size: int, limit: float) -> Measured:
    """Writes `size` bytes to a place of the doctor, for at most `limit` seconds.

    The bytes are random, so that no file system or network can compress them.

    Raises:
        StoreUnavailable: The storage failed while there was time.
    """
    piece = os.urandom(_PIECE)
    began = time.monotonic()
    written = 0

    def time_is_up() -> bool:
        return time.monotonic() - began > limit

    # Nothing is begun when time is up, and requests in flight are waited for: an abandoned one may still be carried out
    # after its object was removed, and leave it behind.
    store.deadline = began + limit + max(limit, _LEAST_PATIENCE)
    each = store.file_size(size)
    try:
        with store.overlapped():
            number = 0
            while written < size and not time_is_up():
                with store.writer(f"save/{number:06d}") as file:
                    left = min(each, size - written)
                    while left and not time_is_up():
                        part = memoryview(piece)[: min(left, _PIECE)]
                        file.write(part)
                        left -= len(part)
                        written += len(part)
                number += 1
    except StoreUnavailable:
        if not time_is_up():
            raise
    finally:
        store.deadline = None
    seconds = max(time.monotonic() - began, _LEAST)
    return Measured(written, seconds, seconds <= limit and written == size)


def check_save_fits(findings: Findings, store: Store, size: int, grace: Grace, source: str) -> None:
    """Measures a save and compares it with the grace.

    Args:
        findings: Collects findings.
        store: A place of the doctor in the directory of the job.
        size: Bytes that this worker writes.
        grace: The grace period.
        source: Where that number comes from.
    """
    try:
        measured = measure(store, size, grace.seconds)
    except CheckpointError as error:
        findings.problem(
            "save",
            f"Writing {shown_size(size)} ({source}) failed: {error}",
            "Correct what the storage says.",
        )
        return
    of_grace = f"of the {grace.seconds:g} s of grace"
    cure = (
        "Give the job more grace (terminationGracePeriodSeconds, --signal, GraceTime), a faster place, or more workers "
        "to share the writing. Until then save_every bounds what is lost."
    )
    if not measured.whole:
        findings.problem(
            "save",
            f"A save of {shown_size(size)} ({source}) does not fit: it was not over when all {of_grace} were used up.",
            cure,
        )
        return
    speed = f"{shown_size(measured.size / measured.seconds)}/s"
    took = f"A save of {shown_size(size)} ({source}) took {measured.seconds:.1f} s ({speed}) {of_grace}"
    if measured.seconds + MARGIN > grace.seconds:
        findings.problem(
            "save", f"{took}, which leaves less than the {MARGIN:g} s that a step and leaving need.", cure
        )
    elif reserve(measured.seconds, 0.0, 0.0) > grace.seconds:
        findings.warning("save", f"{took}. One that takes twice as long, on a bad day, does not fit.", cure)
    else:
        findings.ok("save", f"{took}.")
