"""What the doctor has found out: one sentence in plain words, how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "SCHEMA",
    "Finding",
    "Level",
    "Tell",
    "document",
    "not_checked",
    "ok",
    "problem",
    "warning",
    "would_lose_work",
]

Level = Literal["ok", "not checked", "warning", "problem"]

SCHEMA = 1
"""Version of what `document` returns. A field may be added to it without another version."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        check: What was looked at, such as "room" or "signal path".
        level: "problem": work would be lost, or nobody can say that it would not. "warning": it may be, on a bad day.
            "not checked": there was nothing to check it with.
        what: What was found, in words.
        cure: What to do; empty if nothing is to be done.

    Raises:
        ValueError: It is a problem or a warning without a cure.
    """

    check: str
    level: Level
    what: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.level in ("problem", "warning") and not self.cure:
            raise ValueError(f"Expected a cure for what is wrong. Received: none, for {self.what!r}.")


Tell = Callable[[Finding], object]
"""Takes a finding as soon as there is one."""


def ok(check: str, what: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, "ok", what)


def not_checked(check: str, what: str) -> Finding:
    """It could not be looked at; `what` says what it takes."""
    return Finding(check, "not checked", what)


def warning(check: str, what: str, cure: str) -> Finding:
    """Work may be lost on a bad day, or results may not be repeatable."""
    return Finding(check, "warning", what, cure)


def problem(check: str, what: str, cure: str) -> Finding:
    """Work would be lost."""
    return Finding(check, "problem", what, cure)


def would_lose_work(findings: Sequence[Finding]) -> bool:
    """Whether one of them is a problem."""
    return any(finding.level == "problem" for finding in findings)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """What ``--json`` prints; docs/doctor.md describes it."""
    return {
        "schema": SCHEMA,
        "verdict": "would lose work" if would_lose_work(findings) else "pass",
        "findings": [asdict(finding) for finding in findings],
    }
