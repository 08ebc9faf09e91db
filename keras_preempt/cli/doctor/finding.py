"""What the doctor has found out: one sentence in plain words, how bad it is, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from keras_preempt.cli.terminal import Terminal

__all__ = [
    "SCHEMA",
    "Finding",
    "Level",
    "Printer",
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


_STYLE = {"ok": "", "not checked": "dim", "warning": "yellow", "problem": "bold red"}


class Printer:
    """Shows findings as they come, and the output of the command that is tried.

    Args:
        as_json: Whether standard output is for a JSON document alone.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._terminal = Terminal(sys.stderr) if as_json else Terminal()

    def finding(self, finding: Finding) -> None:
        """Shows one."""
        if self._as_json:
            return
        mark = finding.level.upper() if finding.level == "problem" else finding.level
        self._terminal.line(f"{mark:<12} {finding.check}: {finding.what}", style=_STYLE[finding.level])
        if finding.cure:
            self._terminal.line(f"{'':<12} do this: {finding.cure}")

    def worker_line(self, index: int, line: str) -> None:
        """Shows a line of the command's output."""
        self._terminal.worker_line(index, line)

    def verdict(self, findings: Sequence[Finding]) -> None:
        """Shows the last line."""
        if would_lose_work(findings):
            checks = ", ".join(dict.fromkeys(f.check for f in findings if f.level == "problem"))
            self._terminal.line(f"VERDICT: would lose work ({checks})", style="bold red")
            return
        skipped = ", ".join(dict.fromkeys(f.check for f in findings if f.level == "not checked"))
        also = f" (not checked: {skipped})" if skipped else ""
        self._terminal.line(f"VERDICT: pass{also}", style="bold green")
