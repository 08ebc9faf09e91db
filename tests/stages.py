"""The three stages of `make test`: ``python -m tests.stages [--renew] [PYTEST'S ARGUMENTS]``.

What needs neither TensorFlow nor JAX comes first and takes a minute, so that most failures show at once. Then come the
tests that train in their own process, and last those that start processes. All stages run, whatever failed before.
With ``--renew``, what they took is written to .ci/durations.json, which `tests.durations` shows, and by which the files
of a stage are put in order: the longest first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import durations

TESTS = Path(__file__).parent
_NO_TESTS = 5
"""Pytest's exit status where nothing was selected."""


@dataclass(frozen=True)
class Stage:
    """Tests that run at the same time.

    Attributes:
        name: What it is called.
        places: Folders and files below tests/. A file belongs to the stage with the longest path that leads to it.
        per_core: Processes of pytest for each processor core. Tests that wait for processes leave room for others.
    """

    name: str
    places: tuple[str, ...]
    per_core: float = 1.0

    @property
    def processes(self) -> int:
        """How many processes of pytest there are on this machine."""
        return max(2, round(self.per_core * len(os.sched_getaffinity(0))))


STAGES = (
    Stage(
        "without TensorFlow and JAX",
        ("agreement", "checkpoint", "notices", "process", "report", "testing"),
        per_core=2.0,  # Many wait for a server's fault or deadline.
    ),
    Stage(
        "training in the test's process",
        (
            "backend",
            "checkpoint/storage/test_gcs_saver.py",
            "cli/test_export_keras.py",
            "drilled",
            "notices/test_watcher.py",
            "state",
            "training",
        ),
        per_core=1.5,
    ),
    Stage(
        "training in processes of its own",
        (
            ".",
            "backend/test_across.py",
            "backend/test_on_jax.py",
            "backend/test_on_torch.py",
            "process/test_log_beside_bar.py",
            "report/test_real_runs.py",
            "testing/drills",
        ),
        per_core=1.5,
    ),
)
WITHOUT_BACKEND = 0
"""The stage in which no test may import TensorFlow or JAX."""


def stage_of(path: Path) -> int:
    """Returns the number of the stage that a file belongs to."""
    lengths = [
        max(
            (len(Path(place).parts) for place in stage.places if path.is_relative_to(TESTS / place)),
            default=-1,
        )
        for stage in STAGES
    ]
    return lengths.index(max(lengths))


def main(arguments: Sequence[str]) -> int:
    """Runs all stages; returns 0 if nothing failed and anything was run."""
    renew, arguments = "--renew" in arguments, [each for each in arguments if each != "--renew"]
    statuses, reports = [], []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stages-") as folder:
        for number, stage in enumerate(STAGES):
            print(f"== Stage {number + 1} of {len(STAGES)}: {stage.name}", flush=True)
            report = Path(folder, f"{number}.json")
            command = [sys.executable, "-m", "pytest", "--stage", str(number), "--stage-report", str(report)]
            command += [
                "-n",
                str(stage.processes),
                "--dist",
                "loadfile",
                "--no-loadscope-reorder",
                *arguments,
            ]
            statuses.append(subprocess.run(command).returncode)
            if report.exists():
                reports.append(json.loads(report.read_text()))
    if renew:
        durations.renew(reports)
    counts = [
        sum(report["outcomes"].get(kind, 0) for report in reports) for kind in ("passed", "failed", "skipped")
    ]
    failed = [str(number + 1) for number, status in enumerate(statuses) if status not in (0, _NO_TESTS)]
    print(
        f"All stages took {(time.monotonic() - began) / 60:.1f} min; failed: {', '.join(failed) or 'none'}."
    )
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 1 if failed else min(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
