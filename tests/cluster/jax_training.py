"""A job of ``scripts/train_jax.py`` that is started again and again, and what it left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.harness import ClusterResult, describe, run_cluster
from tests.cluster.outcome import assert_identical

SCRIPT = Path(__file__).parent / "scripts" / "train_jax.py"
PREEMPTED = 75
ON_JAX = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    # Steps that are run so seldom are compiled faster than they would be optimized.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
PATIENCE = 300.0  # seconds for one incarnation, on a busy machine

Strike = tuple[int, str, str]
"""The process, the place and the signal (or "raise"): see the script."""


def terminated(process: int, place: str) -> Strike:
    return process, place, "SIGTERM"


class JaxTraining:
    """One job: its directory, its output, and the outputs of all its incarnations.

    Args:
        folder: A folder for all of it, which is made.
        processes: How many processes.
        kind: How the model is distributed, and other options of the script.
        env: More environment variables.
        url: Where to save, if not in the folder.
        fresh: Whether each process begins with nothing, also without TensorFlow, which the fork server has imported.
    """

    def __init__(
        self,
        folder: Path,
        processes: int,
        *kind: str,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        fresh: bool = True,
    ) -> None:
        self.processes = processes
        self.kind = kind
        self.fresh = fresh
        self.env = dict(env or {})
        self.output = folder / "output"
        self.directory = folder / "run"
        self.saves_in = str(self.directory) if url is None else url
        folder.mkdir(parents=True, exist_ok=True)
        self.results: list[ClusterResult] = []

    def start(self, *strikes: Strike) -> ClusterResult:
        """Runs one incarnation to its end, whatever that is."""
        result = run_cluster(
            SCRIPT,
            self.processes,
            args=[str(self.output), self.saves_in, *self.kind],
            env={**ON_JAX, **self.env, "STRIKES": json.dumps(strikes)},
            timeout=PATIENCE,
            fresh=self.fresh,
        )
        self.results.append(result)
        return result

    def preempt(self, *strikes: Strike) -> ClusterResult:
        """Runs one incarnation that has to stop for the strikes, all processes with the status of a preemption."""
        result = self.start(*strikes).assert_codes(PREEMPTED)
        struck = [output.count("STRUCK") for output in result.outputs]
        for process, _, _ in strikes:
            assert struck[process], f"process {process} was not struck\n{describe(result.outputs)}"
        return result

    def finish(self) -> ClusterResult:
        """Runs one incarnation that has to come to the end of training."""
        return self.start().assert_ok()

    def finish_as(self, undisturbed: JaxTraining) -> None:
        """As `finish`; everything that the two jobs ended with is bit-identical."""
        self.finish()
        assert_identical(undisturbed.output, self.output, self.processes)

    def restored(self, process: int = 0) -> Path:
        """What the last incarnation began with, on one process."""
        return Path(f"{self.output}.restored.{process}.npz")
