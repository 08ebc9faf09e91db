"""What every benchmark prints: where it ran, and a table that stays readable in a log file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata

from keras_preempt import __version__


def conditions() -> str:
    """One line on the machine and the versions: a figure without them cannot be compared with another.

    The load is told because other programs on the machine make every time longer and less certain.
    """
    versions = [f"keras-preempt {__version__}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("keras", "tensorflow", "numpy")]
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
