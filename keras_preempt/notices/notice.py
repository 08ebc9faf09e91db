"""A termination notice: somebody says that this machine, or this process, is about to go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """One warning.

    Attributes:
        source: Who said it, for example "signal" or "coordination key".
        reason: In words, for example "SIGTERM".
        received_at: When it was recorded, in seconds since 1970.
        deadline: When the machine goes, in seconds since 1970, or None if the source does not say.
        cancellable: Whether the source can take it back.
        id: Which event it is at its source: a later notice with the same one replaces this one.
        hint: Whether it only says that a notice may follow: a reason to save, none to leave.
    """

    source: str
    reason: str
    received_at: float
    deadline: float | None = None
    cancellable: bool = False
    id: str = ""
    hint: bool = False
