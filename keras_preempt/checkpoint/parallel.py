"""Several transfers at once, where that is worth threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

TRANSFERS = 4
"""How many at a time: enough to keep a disk busy while sums are taken, and a network while answers are awaited."""

_SMALL = 8 << 20  # bytes in all, below which one after the other is as fast


def in_parallel(calls: Sequence[Callable[[], Result]], size: int) -> list[Result]:
    """Makes calls, and returns when none is running any more.

    Args:
        calls: what to do; each in any thread.
        size: how many bytes all of them together move.

    Returns:
        What they returned, in their order.

    Raises:
        BaseException: what the first of them, in their order, has raised; those that had not begun by then are
            not made.
    """
    if len(calls) < 2 or size < _SMALL:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(TRANSFERS, len(calls)), thread_name_prefix="keras_preempt-transfer") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
