"""The loss of a worker is told as one, with status 69, whatever TensorFlow calls it.

| what happened | what TensorFlow raises at the others | test |
|---|---|---|
| killed in a step | UnavailableError | tests/cluster/test_crashes.py |
| worker 0 frozen for longer than a heartbeat takes | DeadlineExceededError, AbortedError | ..._not_answer_... |
| one worker restarted alone | AbortedError | chaos: ..._restarted_alone_... |
| killed while fit builds the model, before a callback is called | UnavailableError | ..._before_training_begins_... |
| killed in the first resumed epoch, where its metrics are read | UnavailableError | tests/cluster/test_crashes.py |

Under ``keras-preempt run`` all workers start again after each of these (chaos), and the job ends with the weights of an
undisturbed one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.forked import QUIET_CPU
from tests.cluster.harness import RunningCluster, describe, start_cluster

SCRIPT = Path(__file__).parent / "scripts" / "losses.py"
ENV = {**os.environ, **QUIET_CPU, "PYTHONPATH": str(Path(__file__).parents[2])}
TOLD = "Another worker is gone, or cannot be reached"
BOUND = 120.0  # seconds: ten for the heartbeat, and a busy machine


def start(folder: Path, place: str = "train") -> RunningCluster:
    return start_cluster(SCRIPT, 2, args=[str(folder / "run"), place])


def test_a_worker_0_that_does_not_answer_is_lost_and_so_is_it_when_it_comes_back(tmp_path: Path) -> None:
    with start(tmp_path) as cluster:
        for worker in range(2):
            cluster.wait_for_line(worker, "^RAN 3$")
        cluster.signal(0, signal.SIGSTOP)
        # It leaves while worker 0 is still frozen, although every call to the service hangs there.
        cluster.wait_for_line(1, "^RAISED WorkerLost", BOUND)
        cluster.await_end(1, BOUND)
        cluster.signal(0, signal.SIGCONT)
        result = cluster.wait(BOUND).assert_codes(EXIT_WORKER_LOST)
    for output in result.outputs:
        assert TOLD in output, describe(result.outputs)


@pytest.mark.chaos
def test_the_survivor_of_a_worker_that_was_restarted_alone_says_a_loss(tmp_path: Path) -> None:
    with start(tmp_path) as cluster:
        line = cluster.wait_for_line(1, "^TF_CONFIG ")
        cluster.wait_for_line(1, "^RAN 3$")
        again = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "run"), "again"],
            env={**ENV, "TF_CONFIG": line.removeprefix("TF_CONFIG ")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert again.stdout is not None
        assert again.stdin is not None
        try:
            again.stdout.readline()  # It has imported TensorFlow, and joins before the heartbeat is missed.
            cluster.signal(1, signal.SIGKILL)
            cluster.await_end(1)
            again.stdin.close()
            result = cluster.wait(BOUND)
        finally:
            again.kill()
            again.wait()
            again.stdout.close()
    result.assert_codes(EXIT_WORKER_LOST, -signal.SIGKILL)
    assert TOLD in result.outputs[0]


def test_a_worker_that_dies_before_training_begins_is_lost(tmp_path: Path) -> None:
    with start(tmp_path, "build") as cluster:
        result = cluster.wait(BOUND)
    result.assert_codes(EXIT_WORKER_LOST, -signal.SIGKILL)
    assert result.outputs[0].count(TOLD) == 1
    assert not list(tmp_path.glob("run/step-*"))


# -- Under the launcher ---------------------------------------------------------------------------------


def launch(folder: Path, way: str) -> tuple[str, set[str]]:
    """Runs the job under the launcher to its end; returns its output, and what it ended with."""
    launcher = [sys.executable, "-m", "keras_preempt.cli.main", "run", "--workers", "2", "--"]
    ended = subprocess.run(
        [*launcher, sys.executable, str(SCRIPT), str(folder / "run"), way],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout, set(re.findall(r"^\[w\d\] ENDED (\w+)$", ended.stdout, re.MULTILINE))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return launch(tmp_path_factory.mktemp("undisturbed"), "none")[1]


@pytest.mark.chaos
@pytest.mark.parametrize(("way", "starts"), [("frozen", 2), ("build again", 3), ("resumed", 3)])
def test_all_workers_are_started_again_after_a_loss(
    way: str, starts: int, undisturbed: set[str], tmp_path: Path
) -> None:
    output, ends = launch(tmp_path, way)
    assert "a worker was lost without a notice, and there is a checkpoint to go on from" in output
    assert f"incarnations={starts} " in output, output
    assert ends == undisturbed, output
    assert len(ends) == 1
