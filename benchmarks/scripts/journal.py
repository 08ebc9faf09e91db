"""What one worker of a preempted job did and when."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

STEPS = 10_000
"""Far more than a run gets to: it ends by preemption or not at all."""


class Journal:
    """What this worker did and when, in seconds since 1970; one JSON file, written when the job ends.

    Args:
        folder: Where to write it.
    """

    def __init__(self, folder: str) -> None:
        self._worker = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
        self._path = Path(folder) / f"journal-{self._worker}.json"
        self._steps: list[float] = []
        self._times: dict[str, float] = {}

    def step(self) -> None:
        """Prints that a step begins, for the program that chooses when to send the signal."""
        self._steps.append(time.time())
        print(f"STEP {len(self._steps)}", flush=True)

    def note(self, what: str) -> None:
        """Records that something happens now."""
        self._times[what] = time.time()

    def write(self) -> None:
        """Writes the file."""
        self._path.write_text(json.dumps({"steps": self._steps, **self._times}))
