"""A notice of termination: somebody says that this machine, or this process, is about to be ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """One warning.

    Attributes:
        source: Who said it, such as "signal" or "coordination key".
        reason: In words, such as "SIGTERM".
        received_at: When it was received, in seconds since 1970. For people and events; nothing waits by it.
        deadline: When the machine goes, in seconds since 1970, as the source says; None if it does not say. To wait,
            use `ends_at`.
        id: Which event of its source it is about: a later notice with the same id replaces this one.
        hint: Whether it only says that a notice may follow: a reason to save, but not to leave.
        heard_at: The same moment as `received_at`, in monotonic seconds.
    """

    source: str
    reason: str
    received_at: float
    deadline: float | None = None
    id: str = ""
    hint: bool = False
    heard_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def ends_at(self) -> float | None:
        """When the machine goes, in monotonic seconds: what the notice leaves, counted from `heard_at`.

        The system's clock may be set while the notice stands, when the network comes back, say; that must neither
        shorten nor lengthen a grace period.
        """
        return None if self.deadline is None else self.heard_at + (self.deadline - self.received_at)


OnNotice = Callable[[Notice], None]


class Source(Protocol):
    """A source of notices: delivers them from `start` until `stop`, which can be called twice."""

    def start(self) -> None: ...

    def stop(self) -> None: ...
