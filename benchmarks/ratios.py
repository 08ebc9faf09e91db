"""Lets a benchmark tell its ratios to `benchmarks/all.py`, beside what it prints."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "KERAS_PREEMPT_BENCHMARK_RATIOS"
"""The environment variable that names the file; without it nothing is told."""


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
    """Tells one ratio."""
    path = os.environ.get(FILE)
    if path:
        with Path(path).open("a") as stream:
            stream.write(json.dumps(asdict(Ratio(what, against, ratio, better))) + "\n")


def read(path: Path) -> list[Ratio]:
    """Returns what was told."""
    return [Ratio(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
