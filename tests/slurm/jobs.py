"""Jobs of a test: examples/slurm's script, submitted to a Slurm of the test's own."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_preempt.process.environment import DRILL, DRILL_RECORD, PLATFORM, SAVE_EVERY
from tests.cluster.forked import QUIET_CPU
from tests.slurm.daemons import Slurm

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
TASKS = 2
EPOCHS = 2
PATIENCE = 300.0
"""Seconds for a start of TensorFlow, some training and a save on a busy machine."""


class Job:
    """A job of examples/slurm's script: two tasks on one node, since two nodes of one machine share their ports.

    Args:
        slurm: Where it is submitted.
        folder: An empty one for its log.
        command: What the script is given.
        options: Of sbatch, beside those.
        env: Further variables of the job.
    """

    def __init__(
        self,
        slurm: Slurm,
        folder: Path,
        command: Sequence[str],
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._slurm = slurm
        self._log = folder / "job.log"
        variables = {
            # `python` is the one that this runs with.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        shape = ["--nodes=1", f"--ntasks-per-node={TASKS}", f"--output={self._log}"]
        words = ["sbatch", "--parsable", *shape, *options, str(SCRIPT), *command]
        self.id = slurm.command(*words, extra=variables)

    @property
    def log(self) -> str:
        """What all starts of the script and its tasks have printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def describe(self) -> str:
        """All that is known about it, for whoever has to find out why a test fails."""
        return f"{self.log}\n{self._slurm.describe()}"

    def shown(self) -> dict[str, str]:
        """What `scontrol show job` says."""
        text = self._slurm.command("scontrol", "--oneliner", "show", "job", self.id)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_for(self, *states: str, restarts: int | None = None) -> dict[str, str]:
        """Waits until the job is in one of the states, after so many restarts; returns what is shown of it then."""
        found: dict[str, str] = {}

        def reached() -> bool:
            found.update(self.shown())
            return found["JobState"] in states and restarts in (None, int(found["Restarts"]))

        try:
            self._slurm.wait_until(reached, f"job {self.id} is {' or '.join(states)}", PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- shown: {found}\n--- log of the job:\n{self.log}") from None
        return found

    def start_again_now(self) -> None:
        """Waits until the job is back in the queue, and spares it the two minutes that Slurm has it wait there."""
        self.wait_for("PENDING", restarts=1)
        # Not at once: a node takes permission to run that is of the same second as the end of the last start for
        # the one that it has just been told to forget, and the job fails.
        self._slurm.command("scontrol", "update", f"JobId={self.id}", "StartTime=now+3seconds")


class TrainingJob(Job):
    """A job that trains examples/train_on_cluster.py, recorded step by step.

    Args:
        slurm: Where it is submitted.
        folder: An empty one, for its checkpoints as well.
        stands_at: The step before which the first worker stands still in the first start, and waits for a signal;
            None: it does not.
        options: Of sbatch.
        seconds_a_step: How much longer each step of the first start takes.
    """

    def __init__(
        self,
        slurm: Slurm,
        folder: Path,
        stands_at: int | None = None,
        options: Sequence[str] = (),
        seconds_a_step: float = 0.0,
    ) -> None:
        self.directory = folder / "run"
        self.record = folder / "record"
        self.record.mkdir()
        env = {**QUIET_CPU, PLATFORM: "slurm", SAVE_EVERY: "10", DRILL_RECORD: str(self.record)}
        env["SECONDS_A_STEP"] = str(seconds_a_step)
        pipe = folder / "pipe"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        if stands_at is not None:
            env[DRILL] = json.dumps({"member": 0, "step": stands_at, "outside": True, "tell": str(pipe)})
        training = str(Path(__file__).with_name("training.py"))
        example = str(ROOT / "examples" / "train_on_cluster.py")
        command = ["python", training, example, str(self.directory), f"--epochs={EPOCHS}"]
        super().__init__(slurm, folder, command, options, env)

    def wait_until_it_stands(self) -> None:
        """Waits until the first worker has come to its step and stands still."""
        told = self._told()
        assert told.get("wanted"), f"{told}\n{self.log}"

    def wait_until_it_has_heard(self) -> None:
        """Waits until the first worker has heard the signal for which it stood still."""
        told = self._told()
        assert "arrived" in told, f"{told}\n{self.log}"

    def close(self) -> None:
        """Ends the job, if a test has failed before its end, and what listens to the worker."""
        os.close(self._pipe)
        if self.shown()["JobState"] not in ("COMPLETED", "FAILED", "CANCELLED"):
            self._slurm.command("scancel", self.id)

    def _told(self) -> dict[str, object]:
        line, deadline = b"", time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the first worker says nothing\n{self.log}\n{self._slurm.describe()}"
            line += os.read(self._pipe, 1)
        told: dict[str, object] = json.loads(line)
        return told
