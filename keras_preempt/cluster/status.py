"""What workers tell their launcher about the fit that they just ended: ``worker-<index>.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_preempt.report.status import process_file


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's last word; a field that it did not write has the value that promises nothing.

    Attributes:
        directory: the run directory of its last fit, of several in one script; empty if it did not say.
        step: training steps that the saved (or finished) state contains.
        saved: True if this worker's part of that state was saved.
        committed: name of the committed checkpoint, or None.
        finished: True if training came to its end.
        last_saved: the step of the last checkpoint that it knows of, also one of an earlier start.
        exit_code: the status that it was about to leave with after a preemption, or None.
        steps_run: training steps that this worker executed since it started, or None if it did not say.
        timing: seconds by phase, such as startup, restore, train, hold, save, exit.
    """

    directory: str = ""
    step: int = 0
    saved: bool = False
    committed: str | None = None
    finished: bool = False
    last_saved: int = 0
    exit_code: int | None = None
    steps_run: int | None = None
    timing: Mapping[str, float] = field(default_factory=dict)

    @property
    def safe_step(self) -> int:
        """The step from which the next incarnation can go on; 0 if nothing was saved."""
        known = self.step if self.saved or self.finished or self.committed is not None else 0
        return max(known, self.last_saved)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WorkerStatus:
        """Takes the known fields of the right type; ignores everything else."""
        timing = value.get("timing")
        return cls(
            directory=value["directory"] if isinstance(value.get("directory"), str) else "",
            step=_integer(value.get("step")) or 0,
            saved=value.get("saved") is True,
            committed=value["committed"] if isinstance(value.get("committed"), str) else None,
            finished=value.get("finished") is True,
            last_saved=_integer(value.get("last_saved")) or 0,
            exit_code=_integer(value.get("exit_code")),
            steps_run=_integer(value.get("steps_run")),
            timing={
                str(name): float(seconds)
                for name, seconds in (timing.items() if isinstance(timing, dict) else ())
                if isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            },
        )


def read_statuses(directory: Path, workers: int) -> dict[int, WorkerStatus]:
    """Reads what workers 0 to ``workers - 1`` left in a directory.

    A file that is absent or unreadable (its worker was killed) is left out: no information, not an error.
    """
    statuses = {}
    for index in range(workers):
        try:
            value = json.loads((directory / f"worker-{index}.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            statuses[index] = WorkerStatus.from_json(value)
    return statuses


def read_listening(directory: Path, workers: int) -> dict[int, int]:
    """Reads which process of each worker has listened for notices, by worker; one that has not is left out."""
    found = {}
    for index in range(workers):
        try:
            found[index] = int(json.loads((directory / process_file(index)).read_text("utf-8"))["pid"])
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
