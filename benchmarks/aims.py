"""What a benchmark is to reach. Each aim is printed with its verdict; one that is missed makes the exit status 1."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

_STEADY = (
    2.0  # the most by which repetitions of the same plain transfer may differ for a ratio to mean anything
)
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

    def check(
        self, what: str, value: float, relation: str, bound: float, unit: str = "", unsure: str = ""
    ) -> None:
        """Compares a figure with its aim.

        Args:
            what: What was measured.
            value: What it came to.
            relation: "below", "above", "at most" or "at least".
            bound: The aim.
            unit: Of both.
            unsure: Why this run cannot tell, if it cannot: the aim is printed as not judged.
        """
        if not self.apply:
            return
        if unsure:
            self.lines.append(
                f"{what}: {value:.2f}{unit} (aim: {relation} {bound:g}{unit}: not judged, {unsure})"
            )
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


def unsteady(seconds: Sequence[float]) -> str:
    """Says so if a disk was too unsteady to compare anything on it; "" if it was steady.

    Args:
        seconds: What repetitions of the same plain transfer took.
    """
    spread = max(seconds) / min(seconds)
    return f"the disk alone varied {spread:.1f}-fold" if spread > _STEADY else ""
