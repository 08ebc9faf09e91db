"""What calls cost, whole and without what one pays anyway, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


class NetCost:
    """The cost of each contestant, and what is left of it without its baseline.

    Args:
        results: Nanoseconds per step of each turn, by contestant.
        baseline: What one pays anyway, of each contestant: itself if that is what it is.
        against: The contestant whose net cost all others are divided by.
    """

    def __init__(
        self, results: Mapping[str, Sequence[float]], baseline: Mapping[str, str], against: str
    ) -> None:
        self._results = results
        self._baseline = baseline
        self._against = against
        self._median = {name: statistics.median(values) for name, values in results.items()}
        self.net = {name: value - self._median[baseline[name]] for name, value in self._median.items()}

    def ratio(self, name: str) -> float:
        """Returns a net cost over that of the one that all are compared to."""
        return self.net[name] / self.net[self._against]

    def row(self, title: str, name: str) -> list[str]:
        """Returns title, median, quartiles, net cost and ratio; the last two are empty for a baseline."""
        lower, _, upper = statistics.quantiles(self._results[name], n=4)
        is_baseline = name == self._baseline[name]
        shown = ["", ""] if is_baseline else [f"{self.net[name]:.0f}", f"{self.ratio(name):.2f}"]
        return [title, f"{self._median[name]:.0f}", f"{lower:.0f}-{upper:.0f}", *shown]

    def beside_an_empty_callback(self) -> str:
        """Returns a sentence on "ours" and "empty"."""
        ours, empty = self.net["ours"], self.net["empty"]
        return f"Ours against an empty callback: {ours / empty:.2f} times its cost ({ours - empty:+.0f} ns)."
