"""How findings are shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from keras_preempt.cli.doctor.finding import Finding, would_lose_work
from keras_preempt.cli.terminal import Terminal

__all__ = ["Printer"]

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
