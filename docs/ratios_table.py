"""Writes the lists of docs/performance.md: a summary of the ratios in benchmarks/figures.md.

Run `python docs/ratios_table.py` after `make bench`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from generated import main

FIGURES = Path(__file__).parent.parent / "benchmarks" / "figures.md"

#: What a measurement begins with (the first pattern that matches counts), and its row in the summary, which shows the
#: range of all its measurements. None: in no row, because it is a peer's figure or a part of another.
ROWS: dict[str, str | None] = {
    r"a step (under|in)": "a step without a notice",
    r"notice -> committed with the window": "from a notice to the checkpoint, with that window",
    r"notice -> exit": "from a notice to the exit",
    r"(notice|aligned) -> ": "from a notice to the checkpoint",
    r"training within the grace period": "training within a grace period",
    r"save, ": "saving to a disk",
    r"restore, ": "restoring from a disk",
    r"training held up by a save( on JAX)?$": "training held up by a save in the background",
    r"saving to \w+://": "saving to a bucket, 4 or 8 connections",
    r"restoring from \w+://": "restoring from a bucket, 4 or 8 connections",
    r"restoring together, 2": "restoring from a bucket, 2 workers together",
    r"restoring together, 4": "restoring from a bucket, 4 workers together",
    r"replay of a batch": "replaying a batch of input",
    r"resuming on": "input of a resume, arrays in the third epoch",
    r"iterator state": "input of a resume, one device",
    r"input of a resume, ": "input of a resume after 10,000 batches",
    r"input of a resume in the third": None,
    r"a fit with snapshots": "a fit with snapshots of its input",
    r"a preemption save": "a save with a snapshot of the input",
    r"import for .* directory": "importing the package",
    r"import for .* bucket": "importing it, with the storage client",
    r"the hooks of a step on torch": "the hooks of a step without a notice",
    r"a batch drawn on torch": "drawing a batch of a DataLoader",
    r"first step of a built": "the first step, a built model",
    r"first step of a lazily": "the first step, a model that `fit` builds",
    r"the hooks of a step on JAX": "the hooks of a step without a notice",
    r"hooks and window of a step": "hooks and window of such a step",
    r"save on JAX, .*notice": "saving to a disk",
    r"save on JAX, .*background": "saving to a disk in the background",
    r"restore, .* on JAX": "restoring from a disk",
    r"training with the window": "training with the window of steps",
    r"restart with a standby, tensorflow, large": None,
    r"restart with a standby, tensorflow": "a restart with a standby, small model",
    r"restart with a standby, jax, small": "a restart with a standby, small model on JAX",
    r"restart with a standby, jax": None,
    r"steps lost with saves in memory": "steps lost when a process is killed, with saves in memory",
}

_RATIO = re.compile(r"^\| (.+), over (.+) \| ([\d.]+) \| (less|more) \|$", re.MULTILINE)


def tables() -> str:
    """Returns a list of the ratios that should be small and one of those that should be large, for each backend."""
    text, parts = FIGURES.read_text(encoding="utf-8"), []
    for backend, mark in (
        ("TensorFlow", "ratios: "),
        ("JAX", "ratios on JAX: "),
        ("torch", "ratios on torch: "),
    ):
        shown = text.partition(f"<!-- {mark}written")[2].partition(f"<!-- {mark}end")[0]
        ranges: dict[str, dict[tuple[str, str], list[float]]] = {"less": {}, "more": {}}
        for what, peer, ratio, better in _RATIO.findall(shown):
            if (row := _row(what)) is not None:
                ranges[better].setdefault((row, peer), []).append(float(ratio))
        for better, heading in (("less", "Below 1 is better"), ("more", "Above 1 is better")):
            peers: dict[str, list[str]] = {}
            for (row, peer), found in ranges[better].items():
                peers.setdefault(row, []).append(f"{_range(found)} ({peer})")
            lines = [f"- **{row}**: {', '.join(shown)}" for row, shown in peers.items()]
            if lines:
                parts.append("\n".join([f"### {heading}, {backend}", "", *lines]))
    return "\n\n".join(parts)


def _row(what: str) -> str | None:
    for pattern, row in ROWS.items():
        if re.match(pattern, what):
            return row
    raise SystemExit(f"Expected a row for every ratio in {FIGURES.name}. Received: {what!r}. Add it to ROWS.")


def _range(found: list[float]) -> str:
    least, most = f"{min(found):.2f}", f"{max(found):.2f}"
    return least if least == most else f"{least} to {most}"


if __name__ == "__main__":
    sys.exit(main(__file__, "performance.md", "benchmarks/figures.md", tables))
