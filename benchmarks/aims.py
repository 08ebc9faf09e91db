"""What a benchmark is to reach. Each aim is printed with its verdict; one that is missed makes the exit status 1."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

_COMPARE = {"below": operator.lt, "above": operator.gt, "at most": operator.le, "at least": operator.ge}


@dataclass
class Aims:
    """The aims of one run.

    Args:
        apply: Whether they count. A short form is too small for some figures to mean anything; it prints no aim.
    """

    apply: bool = True
    lines: list[str] = field(default_factory=list)
    missed: bool = False

    def check(self, what: str, value: float, relation: str, bound: float, unit: str = "") -> None:
        """Compares a figure with its aim.

        Args:
            what: What was measured.
            value: What it came to.
            relation: "below", "above", "at most" or "at least".
            bound: The aim.
            unit: Of both.
        """
        if not self.apply:
            return
        met = _COMPARE[relation](value, bound)
        self.missed |= not met
        verdict = "met" if met else "MISSED"
        self.lines.append(f"{what}: {value:.2f}{unit} (aim: {relation} {bound:g}{unit}: {verdict})")

    def report(self) -> int:
        """Prints every aim with its verdict; returns the exit status."""
        if self.lines:
            print("\nAims")
            print("\n".join(f"  {line}" for line in self.lines))
        return 1 if self.missed else 0
