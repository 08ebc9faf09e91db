"""However a program ends that does not close its handler: it ends, in time, and as its user would expect."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.harness import ClusterResult, describe, run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "handler_exit.py"
WAYS = ("end", "notice at the end", "error", "error between steps", "exit", "deletion", "SIGTERM", "SIGINT")
PROMISED = {
    "end": {(0, 0)},
    "notice at the end": {(0, 0)},
    "error": {(1, 1)},
    "error between steps": {(1, 1)},
    "exit": {(3, EXIT_WORKER_LOST)},
    "deletion": {(0, 0)},
    "killed 0": {(-signal.SIGKILL, EXIT_WORKER_LOST)},
    "killed 1": {(EXIT_WORKER_LOST, -signal.SIGKILL)},
    # In the loop; in its last step or after all; after the handler has given back the signal.
    "SIGTERM": {(75, 75), (0, 0), (-signal.SIGTERM, 0)},
    "SIGINT": {(-signal.SIGINT, -signal.SIGINT), (0, 0), (-signal.SIGINT, 0)},
}
"""By the way that worker 0 ends: the exit statuses of worker 0 and of worker 1, if there is one."""


def end(folder: Path, way: str, workers: int = 1, seconds: float = 0.0, fresh: bool = True) -> ClusterResult:
    (folder / "tmp").mkdir(parents=True)
    env = {"TMPDIR": str(folder / "tmp")}
    args = [str(folder / "run"), way, str(seconds)]
    result = run_cluster(SCRIPT, workers, args=args, env=env, timeout=100, fresh=fresh)
    shown = f"{way}, {workers} workers, {seconds:.3f} s: {result.codes}\n{describe(result.outputs)}"
    assert list((folder / "tmp").glob("keras-preempt-*")) == [], shown
    assert "Fatal Python error" not in shown, shown
    assert "Exception ignored" not in shown, shown
    assert tuple(result.codes) in {statuses[:workers] for statuses in PROMISED[way]}, shown
    return result


@pytest.mark.parametrize("way", ["notice at the end", pytest.param("error", marks=pytest.mark.chaos)])
def test_the_end_of_the_program_answers_a_notice_and_an_error_does_not(way: str, tmp_path: Path) -> None:
    end(tmp_path, way, fresh=False)
    saved = (tmp_path / "run" / "ckpt-1.index").exists()
    assert saved == (way == "notice at the end")


def test_an_error_that_ends_one_program_ends_the_others_as_that_error(tmp_path: Path) -> None:
    ended = end(tmp_path, "error between steps", 2, fresh=False)
    assert "\nValueError: Worker 0: not in a step" in ended.outputs[1]


@pytest.mark.chaos
@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_that_is_killed_ends_the_other_with_a_status_that_says_so(
    killed: int, tmp_path: Path
) -> None:
    """Told from an error of the program, whose status is 1, and from a preemption, by whoever reads nothing else."""
    ended = end(tmp_path, f"killed {killed}", 2)
    assert re.search(r"^keras_preempt\.[\w.]*WorkerLost: ", ended.outputs[1 - killed], re.MULTILINE)
    assert "Another worker is gone" in ended.outputs[1 - killed]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_200_exits_in_any_way_at_any_moment(tmp_path: Path) -> None:
    choose = random.Random(5)
    exits = 0
    while exits < 200:
        workers, way = choose.choice([1, 1, 2]), choose.choice(WAYS)
        end(tmp_path / str(exits), way, workers, choose.uniform(0, 1.2))
        exits += workers
