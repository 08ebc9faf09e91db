"""How long a save takes: as many bytes as the model has are written, the way in which a save writes them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from keras_preempt.agreement.grace import MARGIN, reserve
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor.finding import Tell, ok, problem, warning
from keras_preempt.cli.doctor.size import shown
from keras_preempt.cli.doctor.surroundings import Grace

__all__ = ["check_save_fits", "measure"]

_PIECE = 4 << 20  # bytes
_LEAST_PATIENCE = 30.0  # seconds for what is on its way when time is up
_LEAST = 0.01  # seconds; what is shorter is not measured by this


@dataclass(frozen=True)
class Measured:
    """A measured save.

    Attributes:
        size: Bytes that were written.
        seconds: How long that took, until they were durable.
        whole: Whether that was all; otherwise time was up.
    """

    size: int
    seconds: float
    whole: bool


def measure(store: Store, size: int, limit: float) -> Measured:
    """Writes `size` bytes below a place of the doctor's own, for at most `limit` seconds.

    The bytes are random, so that no file system or network makes them fewer.

    Raises:
        StoreUnavailable: the storage failed while there was time.
    """
    piece = os.urandom(_PIECE)
    began = time.monotonic()
    written = 0

    def time_is_up() -> bool:
        return time.monotonic() - began > limit

    # Nothing is begun when time is up, and what is on its way is waited for: a request that is given up may be carried
    # out after its object was removed, and leave it behind.
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


def check_save_fits(tell: Tell, store: Store, size: int, grace: Grace, source: str) -> None:
    """Measures a save and compares it with the grace.

    Args:
        tell: Takes findings.
        store: A place of the doctor's own in the directory of the job.
        size: Bytes that this worker writes.
        grace: What there is.
        source: Who says that it is so many bytes.
    """
    try:
        measured = measure(store, size, grace.seconds)
    except CheckpointError as error:
        tell(
            problem(
                "save", f"Writing {shown(size)} ({source}) failed: {error}", "Correct what the storage says."
            )
        )
        return
    of_grace = f"of the {grace.seconds:g} s of grace"
    cure = (
        "Give the job more grace (terminationGracePeriodSeconds, --signal, GraceTime), a faster place, or more workers "
        "to share the writing. Until then save_every bounds what is lost."
    )
    if not measured.whole:
        tell(
            problem(
                "save",
                f"A save of {shown(size)} ({source}) does not fit: it was not over when all {of_grace} were used up.",
                cure,
            )
        )
        return
    speed = f"{shown(measured.size / measured.seconds)}/s"
    took = f"A save of {shown(size)} ({source}) took {measured.seconds:.1f} s ({speed}) {of_grace}"
    if measured.seconds + MARGIN > grace.seconds:
        tell(
            problem(
                "save", f"{took}, which leaves less than the {MARGIN:g} s that a step and leaving need.", cure
            )
        )
    elif reserve(measured.seconds, 0.0, 0.0) > grace.seconds:
        tell(warning("save", f"{took}. One that takes twice as long, on a bad day, does not fit.", cure))
    else:
        tell(ok("save", f"{took}."))
