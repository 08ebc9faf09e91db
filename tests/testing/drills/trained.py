"""Functions that tests have drilled: they are imported by the workers."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

FAKE = Path(__file__).parents[2] / "cli" / "drill" / "fake_training.py"


def train(fault: str = "") -> None:
    """A stand-in for a training, which resumes wrongly or not at all with a fault."""
    os.environ["FAKE_FAULT"] = fault
    runpy.run_path(str(FAKE), run_name="__main__")


def hang(told: str) -> None:
    """Never ends, and says who it is."""
    partial = Path(f"{told}.partial")
    partial.write_text(str(os.getpid()))
    partial.rename(told)
    while True:
        signal.pause()


def needs_what_is_missing() -> None:
    """Fails in the worker."""
    sys.exit("there is no data")


class Trainer:
    def run_of_an_object(self) -> None:
        """Cannot be imported."""
