"""One process that trains on remote workers, as on a TPU: they are taken away, and training goes on on others.

No TPU: `tf.distribute.Server` processes with a coordination service stand in for its workers, and one device of one
of them for a TPUStrategy. The processes, the signals and the connections are real. docs/tpu.md says what that leaves
open.

| what happens | `make test` | chaos |
|---|---|---|
| SIGTERM to the worker that computes; resumed in the process | x | |
| SIGTERM to the worker that hosts the coordination service; resumed in the process | | x |
| SIGTERM to the worker that computes; the process exits with 42 and is started again | x | |
| an error of the program in the grace period, in the loop and without it | | x |
| the workers die without a notice | | x |
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.harness import RunningCluster, describe, start_cluster

SCRIPTS = Path(__file__).parent / "scripts"


class Cloud(ExitStack):
    """Gives a coordinator its workers, and takes them away; ends all processes in the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def workers(self, number: int) -> RunningCluster:
        """Starts the set of workers with this number."""
        cluster = self.enter_context(start_cluster(SCRIPTS / "remote_worker.py", 2))
        for worker in range(2):
            cluster.wait_for_line(worker, "SERVES")
        written = self.folder / "addresses"
        written.write_text(json.dumps(cluster.cluster.addresses))
        written.rename(self.folder / f"workers-{number}.json")
        return cluster

    def coordinator(self, *args: str, script: str = "remote_training.py") -> RunningCluster:
        return self.enter_context(start_cluster(SCRIPTS / script, 1, args=[str(self.folder), *args]))

    def held(self, *args: str, until: str, doomed: int | None = 1) -> tuple[RunningCluster, RunningCluster]:
        """The first workers, of which one is preempted, and a coordinator that waits for that in an execution."""
        (self.folder / "hold-1-10").write_text(until)
        workers = self.workers(0)
        coordinator = self.coordinator(*args)
        coordinator.wait_for_line(0, "HOLDS", 120)
        if doomed is not None:
            workers.signal(doomed, signal.SIGTERM)
        return workers, coordinator

    @property
    def checkpoints(self) -> list[str]:
        """The committed checkpoints."""
        return sorted(
            path.parent.parent.name for path in (self.folder / "run").glob("step-*/*/MANIFEST.json")
        )


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with Cloud(tmp_path) as cloud:
        yield cloud


def ends(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("END ")) for line in output.splitlines() if line.startswith("END ")]


def executions(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("RAN ")]


@pytest.mark.parametrize("worker", [1, pytest.param(0, marks=pytest.mark.chaos)])
def test_a_preempted_worker_is_replaced_in_the_process_and_not_a_bit_is_different(
    cloud: Cloud, worker: int
) -> None:
    first, coordinator = cloud.held("loop", "undisturbed", until="wait", doomed=worker)
    coordinator.wait_for_line(0, f"/job:worker/task:{worker} was preempted: .*step-00000035")
    said = coordinator.outputs[0]
    assert f"remote worker /job:worker/task:{worker} is about to be ended. The coordinator saves" in said
    assert "Watching over 2 remote workers" in said
    assert "worker 0" not in said
    assert cloud.checkpoints == ["step-00000035"]  # The execution in flight, of 5 steps, was the last.
    assert "CONNECTS 1" not in coordinator.outputs[0]
    first.close()
    cloud.workers(1)
    result = coordinator.wait().assert_ok()
    undisturbed, resumed = ends(result.outputs[0])
    assert resumed == undisturbed, describe(result.outputs)
    # Twelve executions in all: none is left out, none is run twice.
    assert [line.split()[1:3] for line in executions(result.outputs[0])] == [
        [str(epoch), str(batch)] for epoch in range(3) for batch in (4, 9, 14, 19)
    ]
    assert "THREADS []" in result.outputs[0]
    assert "keras_preempt: Platform: tpu-coordinator on generic" in result.outputs[0]


def test_without_the_loop_it_exits_with_42_once_the_workers_are_gone_and_resumes_when_started_again(
    cloud: Cloud,
) -> None:
    first, coordinator = cloud.held("exit", "undisturbed", until="wait")
    coordinator.wait_for_line(0, "until the workers are gone")
    with pytest.raises(TimeoutError):
        coordinator.cluster.wait(3)  # They are still there.
    first.close()
    result = coordinator.wait().assert_codes(42)
    (undisturbed,) = ends(result.outputs[0])
    assert cloud.checkpoints == ["step-00000035"]
    (cloud.folder / "workers-0.json").unlink()
    cloud.workers(0)
    again = cloud.coordinator("exit").wait().assert_ok()
    assert ends(again.outputs[0]) == [undisturbed]
    assert len(executions(result.outputs[0]) + executions(again.outputs[0])) == 12


@pytest.mark.chaos
def test_an_error_of_the_program_in_the_grace_period_is_neither_a_save_nor_a_preemption(cloud: Cloud) -> None:
    _, coordinator = cloud.held("exit", until="error")
    result = coordinator.wait().assert_codes(1)
    assert "an error that is no preemption" in result.outputs[0]
    assert "Saved" not in result.outputs[0]
    assert cloud.checkpoints == []


@pytest.mark.chaos
def test_the_loop_recovers_from_an_error_that_comes_with_a_preemption(cloud: Cloud) -> None:
    first, coordinator = cloud.held("loop", "undisturbed", until="error")
    coordinator.wait_for_line(0, "was preempted: an error that is no preemption")
    first.close()
    cloud.workers(1)
    result = coordinator.wait().assert_ok()
    undisturbed, resumed = ends(result.outputs[0])
    assert resumed == undisturbed


@pytest.mark.chaos
def test_workers_that_die_without_a_notice_are_lost_and_the_exit_status_says_so(cloud: Cloud) -> None:
    first, coordinator = cloud.held("loop", until="lost", doomed=None)
    first.close()
    (cloud.folder / "gone").touch()
    result = coordinator.wait(180)
    held = (
        result.codes[0] == 1 and "Timeout (" in result.outputs[0]
    )  # TensorFlow hangs, and holds Python's lock.
    assert held or result.codes[0] == EXIT_WORKER_LOST, describe(result.outputs)
    assert held or re.search("Another worker is gone|The remote workers are gone", result.outputs[0])
    assert cloud.checkpoints == []
