"""Calls of a store that are made several at a time: transfers of large files, and requests that are all latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import TypeVar

from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.threads import Pool

TRANSFERS = 4
"""Transfers at a time: enough to keep a disk busy while sums are taken, and a network while answers are awaited."""

REQUESTS = 64
"""Small requests at a time to a store behind a network, which spend their time waiting for the answer."""

_LOCAL = 8  # small calls at a time to a file system, which may be behind a network too
_WORTH = 16  # such calls for each thread: the system has most of their answers in memory
_SMALL = 8 << 20  # bytes in all, below which what is moved takes less time than what is waited for

Result = TypeVar("Result")


def in_parallel(store: Store, calls: Sequence[Callable[[], Result]], size: int = 0) -> list[Result]:
    """Makes calls of a store that move `size` bytes together, in threads where that is worth it.

    Each call keeps to the deadline of the store, so that the time of all is bounded. No thread is left when this ends.

    Returns:
        The results, in the order of the calls.

    Raises:
        Exception: The first error, in their order. Calls that had not begun when one failed are not made; those under
            way have ended.
    """
    most = min(_at_once(store, len(calls), size), len(calls))
    if most < 2:
        return [call() for call in calls]
    with Pool(most, "keras_preempt-transfer") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    # They begin in their order, so that one before the first that failed has ended, too.
    return [future.result() for future in futures]


def _at_once(store: Store, calls: int, size: int) -> int:
    if store.shared_by_network:  # As many as move `_SMALL` bytes, if their sizes are alike.
        return max(TRANSFERS, store.connections, min(REQUESTS, calls * _SMALL // max(size, 1)))
    return TRANSFERS if size >= _SMALL else min(_LOCAL, calls // _WORTH)
