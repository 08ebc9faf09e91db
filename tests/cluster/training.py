"""A training job of ``scripts/train.py`` that is started again and again, and what it left behind."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.failpoints import VARIABLE
from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX
from tests.cluster.harness import ClusterResult, describe, run_cluster, start_cluster
from tests.cluster.outcome import assert_identical

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
PREEMPTED = 75
GRACE = 3.0
"""Seconds between the death of one worker and that of the others, in `Training.crash`."""


@dataclass(frozen=True)
class Strike:
    """A signal to ``members`` where they say ``at``, after so many ``commits``; see ``scripts/marks.py``."""

    at: str
    members: tuple[int, ...] = (0,)
    after: float | None = None
    settle: bool = True
    signal: str = "SIGTERM"
    commits: int = 0


class Training:
    """One job: its directory, its output, and the lines of all its incarnations.

    Args:
        folder: An empty folder for all of it.
        workers: Number of processes.
        args: Options of ``train.py``.
    """

    def __init__(self, folder: Path, workers: int = 1, args: Sequence[str] = ()) -> None:
        self.workers = workers
        self.args = [*args, "--marks", *(["--strategy", "mwms"] if workers > 1 else [])]
        self.output = folder / "output"
        self.directory = folder / "run"
        self.results: list[ClusterResult] = []

    @property
    def command(self) -> list[str]:
        """Arguments of the script."""
        return [str(self.output), str(self.directory), *self.args]

    @property
    def checkpoints(self) -> list[str]:
        """Folders of the committed checkpoints, in the order in which they were committed."""
        found = [path.parent for path in self.directory.glob("step-*/*/MANIFEST.json")]
        found.sort(key=lambda path: path.name)
        return [str(path.relative_to(self.directory)) for path in found]

    def start(
        self,
        *strikes: Strike,
        env: Mapping[str, str | None] | None = None,
        per_worker_env: Mapping[int, Mapping[str, str | None]] | None = None,
        args: Sequence[str] = (),
    ) -> ClusterResult:
        """Runs one incarnation to its end, whatever that is."""
        result = run_cluster(
            SCRIPT,
            self.workers,
            args=[*self.command, *args],
            env={"TRAIN_STRIKES": json.dumps([asdict(strike) for strike in strikes]), **(env or {})},
            per_worker_env=per_worker_env,
            timeout=240,
        )
        self.results.append(result)
        return result

    def crash(self, *strikes: Strike, failpoints: Mapping[int, str] | None = None) -> list[int]:
        """Runs one incarnation that loses a worker to SIGKILL; soon after it, the machines of the others.

        Args:
            strikes: What happens to it.
            failpoints: For each worker, where it is cut.

        Returns:
            The exit codes.
        """
        armed = {worker: {VARIABLE: f"{point}=kill"} for worker, point in (failpoints or {}).items()}
        env = {"TRAIN_STRIKES": json.dumps([asdict(strike) for strike in strikes])}
        running = start_cluster(SCRIPT, self.workers, args=self.command, env=env, per_worker_env=armed)
        with running:
            exits = running.cluster.wait(240, failure_grace=GRACE, kill_grace=0.0)
            codes = [exit.code for exit in sorted(exits, key=lambda exit: exit.index)]
            self.results.append(ClusterResult(codes, running.outputs, 0.0))
        assert -9 in codes, f"nobody was killed\n{describe(running.outputs)}"
        return codes

    def preempt(self, *strikes: Strike, **how: Any) -> ClusterResult:
        """Runs one incarnation that has to stop for the strikes: all workers at one place, none a step late."""
        result = self.start(*strikes, **how).assert_codes(PREEMPTED)
        holds = [self.events(worker)[-1]["hold"][-1] for worker in range(self.workers)]
        stops = {
            json.dumps([hold[k] for k in ("boundary", "epoch", "phase", "batch", "step")]) for hold in holds
        }
        assert len(stops) == 1, f"the workers stopped at different places: {stops}"
        begun = all(strike.at.startswith("batch") for strike in strikes)
        settled = all(strike.settle and strike.at != "tracing" for strike in strikes)
        for output in result.outputs:
            _, struck, after = output.partition("STRUCK")
            shown = f"after the notice\n{describe(result.outputs)}"
            # The step in flight is finished; elsewhere another worker may have begun the next one.
            assert not struck or after.count("\nRAN ") <= 1, f"more than the step in flight {shown}"
            if struck and settled and (begun or self.workers == 1):
                assert not re.search(r"^AT (batch|test|test_batch|epoch) ", after, re.M), (
                    f"more began {shown}"
                )
        return result

    def finish(self, *strikes: Strike, **how: Any) -> ClusterResult:
        """Runs one incarnation that has to come to the end of training."""
        return self.start(*strikes, **how).assert_ok()

    def finish_as(self, undisturbed: Training, *strikes: Strike, **how: Any) -> None:
        """As `finish`, and as if nothing had happened."""
        self.finish(*strikes, **how)
        self.assert_same(undisturbed)

    def events(self, worker: int) -> list[dict[str, list[dict[str, Any]]]]:
        """The worker's events by kind, of every incarnation that wrote any."""
        found = []
        for path in sorted(self.directory.glob(f"events/*.w{worker:05d}.jsonl")):
            kinds: dict[str, list[dict[str, Any]]] = {}
            for line in path.read_text().splitlines():
                event = json.loads(line)
                kinds.setdefault(event["event"], []).append(event)
            found.append(kinds)
        return found

    def steps(self, worker: int) -> list[str]:
        """Every training step that any incarnation ran: its epoch and batch, its logs and what it drew."""
        return [
            line
            for result in self.results
            for line in result.outputs[worker].splitlines()
            if line.startswith("RAN ")
        ]

    def assert_same_end(self, undisturbed: Training) -> None:
        """Everything that the two jobs ended with is bit-identical."""
        assert_identical(undisturbed.output, self.output, self.workers)
        leftovers = [path for path in self.directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
        assert not leftovers

    def assert_same(self, undisturbed: Training) -> None:
        """As if nothing had happened: the same end, by the same steps, none left out and none run twice."""
        for worker in range(self.workers):
            steps, expected = self.steps(worker), undisturbed.steps(worker)
            assert steps == expected, "\n".join(difflib.ndiff(expected, steps))
        self.assert_same_end(undisturbed)


Undisturbed = Callable[..., Training]
"""Gives the undisturbed job for ``(workers, *args)``; run once, shared by all tests."""
