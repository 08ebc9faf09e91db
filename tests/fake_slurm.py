"""A Slurm of one node for tests: runs a batch script under the stand-ins of tests/slurm_stand_in, signals its tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STAND_INS = Path(__file__).with_name("slurm_stand_in")
JOB = "4711"

#: The options of sbatch that the scripts may use: a misspelt one would be refused by sbatch.
KNOWN = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "time",
    "signal",
    "requeue",
    "open-mode",
    "output",
}


def directives(script: Path) -> dict[str, str]:
    """The #SBATCH options, as sbatch reads them: up to the first line that is no comment."""
    found = {}
    for line in script.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if match := re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line):
            assert match[1] in KNOWN, f"sbatch has no option --{match[1]} that this stand-in knows"
            found[match[1]] = match[2] or ""
        else:
            assert not line.startswith("#SBATCH"), f"not of the form --option=value: {line}"
    return found


@dataclass(frozen=True)
class BatchRun:
    """How one start of the batch script ended: its exit status, its output, and whether it is to be started again."""

    code: int
    output: str
    requeued: bool


class FakeSlurm:
    """Runs one batch job, start by start.

    Args:
        folder: An empty one for what the stand-ins write.
        script: The batch script.
        command: Its arguments.
        tasks: How many srun starts; None: as the script's directives say.
        env: Further variables.
    """

    def __init__(
        self,
        folder: Path,
        script: Path,
        command: Sequence[str],
        *,
        tasks: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._command = ["bash", str(script), *command]
        self._options = directives(script)
        asked = int(self._options["nodes"]) * int(self._options["ntasks-per-node"])
        self.tasks = asked if tasks is None else tasks
        self._env = env or {}
        self._starts = 0

    def start(
        self,
        *,
        time_is_up_at: str | None = None,
        preempt_at: str | None = None,
        lines: int | None = None,
        timeout: float = 300.0,
    ) -> BatchRun:
        """Starts the script and waits for its end.

        Args:
            time_is_up_at: As soon as the tasks have written this, they get what --signal says.
            preempt_at: The same, but Slurm preempts the job: SIGTERM to the tasks and to the batch shell.
            lines: How many lines with it are waited for; None: one of each task.
            timeout: Seconds after which everything is killed.
        """
        (self._folder / "step.json").unlink(missing_ok=True)
        (self._folder / "requeued").unlink(missing_ok=True)
        env = {
            **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
            **self._env,
            # `python` and the stand-ins are those that this runs with.
            "PATH": os.pathsep.join(
                [str(STAND_INS), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
            ),
            "FAKE_SLURM": str(self._folder),
            "SLURM_JOB_ID": JOB,
            "SLURM_NTASKS": str(self.tasks),
            "SLURM_CPUS_PER_TASK": self._options["cpus-per-task"],
            "PYTHONUNBUFFERED": "1",
        }
        if self._starts:
            env["SLURM_RESTART_COUNT"] = str(self._starts)
        self._starts += 1
        batch = subprocess.Popen(
            self._command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        watchdog = threading.Timer(timeout, os.killpg, (batch.pid, signal.SIGKILL))
        watchdog.start()
        try:
            output = self._follow(batch, time_is_up_at, preempt_at, self.tasks if lines is None else lines)
            code = batch.wait(timeout)
        finally:
            watchdog.cancel()
            watchdog.join()
            if batch.poll() is None:
                os.killpg(batch.pid, signal.SIGKILL)
                batch.wait(10)
        requeued = self._folder / "requeued"
        return BatchRun(code, "".join(output), requeued.exists() and requeued.read_text() == JOB)

    def _follow(
        self, batch: subprocess.Popen[str], time_is_up_at: str | None, preempt_at: str | None, needed: int
    ) -> list[str]:
        mark = time_is_up_at or preempt_at
        lines, seen, sent = [], 0, False
        assert batch.stdout is not None
        with batch.stdout:
            for line in batch.stdout:
                lines.append(line)
                seen += mark is not None and mark in line
                if mark is not None and seen >= needed and not sent:
                    sent = True
                    if preempt_at:
                        self._signal_tasks(signal.SIGTERM)
                        batch.send_signal(signal.SIGTERM)
                    else:
                        self._time_is_up(batch)
        return lines

    def _time_is_up(self, batch: subprocess.Popen[str]) -> None:
        to_shell, name = re.fullmatch(r"(B:)?([A-Z0-9]+)@\d+", self._options["signal"]).groups()  # type: ignore
        number = signal.Signals[f"SIG{name}"]
        if to_shell:
            batch.send_signal(number)
        else:
            self._signal_tasks(number)

    def _signal_tasks(self, number: signal.Signals) -> None:
        for pid in json.loads((self._folder / "step.json").read_text()):
            os.kill(pid, number)
