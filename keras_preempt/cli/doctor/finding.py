"""What the doctor has found: a sentence in plain words, how bad it is, what to do about it, and how it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from keras_preempt.cli.terminal import Terminal

# "problem": work would be lost, or it is unknown whether it would. "warning": it may be lost if things go badly.
# "not checked": there was nothing to check it with.
Level = Literal["ok", "not checked", "warning", "problem"]

SCHEMA = 1
"""Version of what `Findings.document` returns. Fields may be added to it without another version."""

_STYLE = {"ok": "", "not checked": "dim", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One finding; a problem or a warning says how to cure it."""

    check: str  # What was looked at, such as "room" or "signal path".
    level: Level
    what: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.level in ("problem", "warning") and not self.cure:
            raise ValueError(f"Expected a cure for what is wrong. Received: none, for {self.what!r}.")


class Findings:
    """Collects findings, and calls `on_finding` with each as soon as there is one."""

    def __init__(self, on_finding: Callable[[Finding], object] = lambda finding: None) -> None:
        self._on_finding = on_finding
        self.all: list[Finding] = []

    def add(self, finding: Finding) -> None:
        self.all.append(finding)
        self._on_finding(finding)

    def ok(self, check: str, what: str) -> None:
        self.add(Finding(check, "ok", what))

    def not_checked(self, check: str, what: str) -> None:
        """`what` says what the check needs."""
        self.add(Finding(check, "not checked", what))

    def warning(self, check: str, what: str, cure: str) -> None:
        self.add(Finding(check, "warning", what, cure))

    def problem(self, check: str, what: str, cure: str) -> None:
        self.add(Finding(check, "problem", what, cure))

    @property
    def would_lose_work(self) -> bool:
        return any(finding.level == "problem" for finding in self.all)

    def checks(self, level: Level) -> str:
        return ", ".join(dict.fromkeys(finding.check for finding in self.all if finding.level == level))

    def document(self) -> dict[str, Any]:
        """Returns what ``--json`` prints; docs/doctor.md describes it."""
        return {
            "schema": SCHEMA,
            "verdict": "would lose work" if self.would_lose_work else "pass",
            "findings": [asdict(finding) for finding in self.all],
        }


class Printer:
    """Shows findings as they come, and the output of the command that is tried.

    With `as_json` standard output is for a JSON document alone.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._terminal = Terminal(sys.stderr) if as_json else Terminal()
        self.worker_line = self._terminal.worker_line

    def finding(self, finding: Finding) -> None:
        if self._as_json:
            return
        mark = finding.level.upper() if finding.level == "problem" else finding.level
        self._terminal.line(f"{mark:<12} {finding.check}: {finding.what}", style=_STYLE[finding.level])
        if finding.cure:
            self._terminal.line(f"{'':<12} do this: {finding.cure}")

    def verdict(self, findings: Findings) -> None:
        if findings.would_lose_work:
            line = f"VERDICT: would lose work ({findings.checks('problem')})"
            self._terminal.line(line, style="bold red")
            return
        skipped = findings.checks("not checked")
        also = f" (not checked: {skipped})" if skipped else ""
        self._terminal.line(f"VERDICT: pass{also}", style="bold green")
