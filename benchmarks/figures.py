"""What every benchmark prints and reports: where it ran, a table, its ratios, and its aims."""

from __future__ import annotations

import json
import operator
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from keras_preempt import __version__

ON_JAX = ("keras", "jax")
"""The packages whose versions a benchmark on JAX names, beside those of its peers."""

ON_TORCH = ("keras", "torch")
"""The same of a benchmark on torch."""


def conditions(*packages: str) -> str:
    """One line on the machine and the versions: a figure without them cannot be compared with another.

    The load is named because other programs on the machine make every time longer and less certain.

    Args:
        packages: Whose versions to name; none for those of a benchmark on TensorFlow.
    """
    versions = [f"keras-preempt {__version__}"]
    versions += [f"{name} {metadata.version(name)}" for name in packages or ("keras", "tensorflow", "numpy")]
    return (
        f"{', '.join(versions)}; Python {platform.python_version()} on {platform.system()} "
        f"{platform.machine()}, {cores()} cores, load {os.getloadavg()[0]:.1f}"
    )


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns: the first to the left, the others to the right.

    Raises:
        ValueError: A row has another number of cells than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"Expected {len(header)} cells in every row. Received: {list(row)}.")
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = "  ".join("-" * width for width in widths)
    shown = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([shown[0], rule, *shown[1:]])


# -- Ratios: what `benchmarks/all.py` collects -------------------------------------------------------------

FILE = "KERAS_PREEMPT_BENCHMARK_RATIOS"
"""The environment variable that names the file to write; without it nothing is written."""


@dataclass(frozen=True)
class Ratio:
    """One of our figures over that of a peer, measured in the same run.

    Attributes:
        what: What was measured.
        against: The peer.
        ratio: Ours over the peer's.
        better: "less" or "more".
    """

    what: str
    against: str
    ratio: float
    better: str


def tell(what: str, against: str, ratio: float, *, better: str) -> None:
    """Reports one ratio to `benchmarks/all.py`."""
    path = os.environ.get(FILE)
    if path:
        with Path(path).open("a") as stream:
            stream.write(json.dumps(asdict(Ratio(what, against, ratio, better))) + "\n")


def read(path: Path) -> list[Ratio]:
    """Returns the ratios that were reported."""
    return [Ratio(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


# -- Aims: each is printed with its verdict; a missed one makes the exit status 1 ---------------------------

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
