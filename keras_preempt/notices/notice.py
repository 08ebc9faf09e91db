"""A termination notice: somebody says that this machine, or this process, is about to go."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notice:
    """One warning.

    Attributes:
        source: Who said it, for example "signal" or "coordination key".
        reason: In words, for example "SIGTERM".
        received_at: When it was recorded, in seconds since 1970. For people and events; nothing waits by it.
        deadline: When the machine goes, in seconds since 1970, or None if the source does not say. As it was told:
            to wait by, there is `ends_at`.
        id: Which event it is at its source: a later notice with the same one replaces this one.
        hint: Whether it only says that a notice may follow: a reason to save, none to leave.
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
        """When the machine goes, in monotonic seconds: what is left by the clock of the day is counted from now on.

        That clock may be set while the notice stands, when the network comes back, say; a grace period must then be
        neither cut nor drawn out.
        """
        return None if self.deadline is None else self.heard_at + (self.deadline - self.received_at)
