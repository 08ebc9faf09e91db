"""Reads the files in which workers report to their launcher: ``worker-0.json``, ``process-0.json``, ``fit-0.json``.

Also records in the events of a run how its processes ended, since a process that is killed cannot.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cluster.hangs import Hang
from keras_preempt.cluster.local import WorkerExit
from keras_preempt.drilled.places import record_name
from keras_preempt.process.environment import CLOUD, DRILL_RECORD
from keras_preempt.report import events
from keras_preempt.report.status import CLOUD_FILE, fit_file, memory_file, process_file


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
        out_of_time: Whether the time of the whole job is over, so that another start has none.
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
    out_of_time: bool = False

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
            **dict.fromkeys(("saved", "finished", "out_of_time"), bool),
            **dict.fromkeys(("step", "last_saved", "exit_code", "steps_run"), int),
        }
        timing = value.get("timing")
        seconds = timing.items() if isinstance(timing, dict) else ()
        return cls(
            **{name: value[name] for name, kind in kinds.items() if type(value.get(name)) is kind},
            timing={str(name): float(each) for name, each in seconds if type(each) in (int, float)},
        )


def incarnation_folder(incarnation: int) -> str:
    """Returns the name of the folder in which the workers of one start report."""
    return f"{incarnation:05d}"


def read_statuses(directory: Path, workers: int) -> dict[int, WorkerStatus]:
    """Reads what workers 0 to ``workers - 1`` left in a directory, without those that were killed before they could."""
    found = {index: _read(directory / f"worker-{index}.json") for index in range(workers)}
    return {index: WorkerStatus.from_json(value) for index, value in found.items() if value is not None}


def read_unreported(directory: Path, hang: Hang) -> dict[int, WorkerStatus]:
    """What is known of the fits of workers in a hang, if they leave no status."""
    fits = {index: _read(directory / fit_file(index)) or {} for index in hang.positions}
    return {
        index: WorkerStatus.from_json(
            {"directory": fits[index].get("directory"), "last_saved": position.saved}
        )
        for index, position in hang.positions.items()
    }


def read_listening(directory: Path, workers: int) -> dict[int, int]:
    """The id of the process that listens for notices, by worker; a worker without one is left out."""
    found = {index: (_read(directory / process_file(index)) or {}).get("pid") for index in range(workers)}
    return {index: pid for index, pid in found.items() if type(pid) is int}


def read_in_memory(directory: Path, workers: int) -> int:
    """The furthest step that a worker has kept in memory; 0 for none."""
    steps = [(_read(directory / memory_file(index)) or {}).get("step") for index in range(workers)]
    return max((step for step in steps if type(step) is int), default=0)


def read_cloud(root: Path) -> dict[str, str]:
    """The variable with what metadata servers have told the newest start that asked them, none if none has."""
    for file in sorted(root.glob(f"[0-9]*/{CLOUD_FILE}"), reverse=True):
        if (answer := (_read(file) or {}).get("answer")) is not None:
            return {CLOUD: json.dumps(answer)}
    return {}


def overdue(directory: Path, workers: int, limit: float) -> dict[int, int]:
    """The exit statuses that workers announced more than `limit` seconds ago without training again since."""
    unsaid = read_unsaid(directory, workers)
    found: dict[int, int] = {}
    for index, status in read_statuses(directory, workers).items():
        said = _written(directory / f"worker-{index}.json")
        if status.exit_code and not (status.finished or index in unsaid) and time.time() - said > limit:
            found[index] = status.exit_code
    return found


def read_unsaid(directory: Path, workers: int) -> frozenset[int]:
    """Workers that have begun a fit and have not said how it ended, as they do however Python ends it."""
    return frozenset(
        index
        for index in range(workers)
        if _written(directory / fit_file(index)) > _written(directory / f"worker-{index}.json")
    )


def _written(file: Path) -> float:
    """When a file was written last; 0 if there is none."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


_RECORD_SECONDS = 30.0  # How long writing the record may take.


def record_exits(
    status_dir: Path,
    exits: Sequence[WorkerExit],
    say: Callable[[str], None],
    steps: Callable[[int], int | None] = lambda member: None,
    hang: Hang | None = None,
) -> None:
    """Writes the end of each worker that has begun a fit to the events of that fit.

    `status_dir` is where the workers have named the fits that they began. `say` is called with a line about what could
    not be written; that affects only the report. `steps` returns the optimizer steps of a worker, None if unknown.
    `hang` is how the job hung, if it did.
    """
    hung = {} if hang is None else dict(hang.to_events())
    monotonic_to_unix = time.time() - time.monotonic()
    lines: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
    for exit in exits:
        fit = _read(status_dir / fit_file(exit.index)) or {}
        run, incarnation = fit.get("directory"), fit.get("incarnation")
        if isinstance(run, str) and type(incarnation) is int:
            if hang is not None and exit.index in hung:
                lines[run, incarnation].append(events.line("hang", hang.at, exit.index, **hung[exit.index]))
            done = steps(exit.index)
            known = {} if done is None else {"step": done}
            line = events.line("gone", exit.at + monotonic_to_unix, exit.index, code=exit.code, **known)
            lines[run, incarnation].append(line)
    for (directory, incarnation), told in lines.items():
        try:
            store = open_store(directory)
            store.deadline = time.monotonic() + _RECORD_SECONDS
            try:
                if store.children(EVENTS):  # Otherwise somebody has removed the directory meanwhile.
                    store.create(events.log_name(incarnation, None), b"".join(told))
            finally:
                store.close()
        except (CheckpointError, OSError, ValueError) as error:
            say(f"how the workers ended could not be recorded in {directory}: {error}")


def recorded_steps(environment: Mapping[str, str | None], incarnation: int, member: int) -> int | None:
    """How many steps a worker has done, by its record in a drill; None outside of one.

    `environment` has the variables of the workers; `incarnation` is how often the launcher had started them before.
    """
    folder = environment.get(DRILL_RECORD)
    if not folder:
        return None
    try:
        lines = (Path(folder) / record_name(incarnation, member)).read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):  # The last one may be half-written.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return None
