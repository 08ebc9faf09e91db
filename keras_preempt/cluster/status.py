"""Reads the files in which workers report to their launcher: ``worker-0.json``, ``process-0.json``, ``fit-0.json``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_preempt.report.status import fit_file, process_file


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker reported at the end of its last fit. A field that it did not write has the most cautious value.

    Attributes:
        directory: The run directory of its last fit; empty if it did not say.
        step: Training steps in the state that was saved or finished.
        saved: Whether this worker's part of that state was saved.
        committed: Name of the committed checkpoint; None if there is none.
        finished: Whether training finished.
        last_saved: The step of the last checkpoint that it knows of, possibly from an earlier start.
        exit_code: The status with which it was about to exit after a preemption; None if there was none.
        steps_run: Training steps that it has run since it started; None if it did not say.
        timing: Seconds by phase, such as startup, restore, train, hold, save, exit.
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
        """The step from which the next incarnation can continue; 0 if nothing was saved."""
        known = self.step if self.saved or self.finished or self.committed is not None else 0
        return max(known, self.last_saved)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WorkerStatus:
        """Takes the known fields that have the right type, and ignores everything else."""
        kinds: dict[str, type] = {
            **dict.fromkeys(("directory", "committed"), str),
            **dict.fromkeys(("saved", "finished"), bool),
            **dict.fromkeys(("step", "last_saved", "exit_code", "steps_run"), int),
        }
        timing = value.get("timing")
        seconds = timing.items() if isinstance(timing, dict) else ()
        return cls(
            **{name: value[name] for name, kind in kinds.items() if type(value.get(name)) is kind},
            timing={str(name): float(each) for name, each in seconds if type(each) in (int, float)},
        )


def read_statuses(directory: Path, workers: int) -> dict[int, WorkerStatus]:
    """Reads what workers 0 to ``workers - 1`` left in a directory, without those that were killed before they could."""
    found = {index: _read(directory / f"worker-{index}.json") for index in range(workers)}
    return {index: WorkerStatus.from_json(value) for index, value in found.items() if value is not None}


def read_listening(directory: Path, workers: int) -> dict[int, int]:
    """The id of the process that listens for notices, by worker; a worker without one is left out."""
    found = {index: (_read(directory / process_file(index)) or {}).get("pid") for index in range(workers)}
    return {index: pid for index, pid in found.items() if type(pid) is int}


def overdue(directory: Path, workers: int, limit: float) -> dict[int, int]:
    """The exit statuses that workers said, more than `limit` seconds ago, they would end with after a preemption.

    A worker that has begun to train again since then is left out.
    """

    def written(name: str) -> float:
        try:
            return (directory / name).stat().st_mtime
        except OSError:
            return 0.0

    found: dict[int, int] = {}
    for index, status in read_statuses(directory, workers).items():
        said = written(f"worker-{index}.json")
        trains_again = written(fit_file(index)) > said
        if status.exit_code and not (status.finished or trains_again) and time.time() - said > limit:
            found[index] = status.exit_code
    return found


def read_fit(directory: Path, index: int) -> tuple[str, int] | None:
    """Reads the directory and the incarnation of the fit that a worker has begun; None if it has not said so."""
    value = _read(directory / fit_file(index)) or {}
    run, incarnation = value.get("directory"), value.get("incarnation")
    return (run, incarnation) if isinstance(run, str) and type(incarnation) is int else None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
