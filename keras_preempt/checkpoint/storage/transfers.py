"""How what moves the bytes of a checkpoint tells how many it has moved, to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Moved = Callable[[int], None]
"""Called with how many more bytes have gone to the storage or come from it: for pieces of about 1 MiB or more, from any
thread, several at a time. A negative number: so many have to be moved once more."""

Shown = Callable[[str, int], AbstractContextManager[Moved]]
"""Called with what is about to be done, such as "Reading step-00000012/00001-0000", and how many bytes that moves."""


def uncounted(count: int) -> None:
    """Nobody wants to know."""


@contextmanager
def silent(task: str, total: int) -> Iterator[Moved]:
    """Shows nothing."""
    yield uncounted
