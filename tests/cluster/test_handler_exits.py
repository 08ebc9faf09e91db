"""However a program ends that does not close its handler: it ends, in time, and as its user would expect."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.harness import ClusterResult, describe, run_cluster

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "handler_exit.py"
WAYS = ("end", "notice at the end", "error", "error between steps", "exit", "deletion", "SIGTERM", "SIGINT")
STATUS = {
    "end": {0},
    "notice at the end": {0},
    "error": {1},
    "error between steps": {1},
    "exit": {3},
    "deletion": {0},
}
STRUCK = {
    0,
    1,
    75,
    EXIT_WORKER_LOST,
    -signal.SIGTERM,
    -signal.SIGINT,
}
"""A signal can come before the first instruction of the loop and after the last one."""


def end(folder: Path, way: str, workers: int = 1, seconds: float = 0.0) -> ClusterResult:
    (folder / "tmp").mkdir(parents=True)
    env = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
    args = [str(folder / "run"), way, str(seconds)]
    # Fresh: how a program ends is what is looked at, so it has to be one that was started as such.
    result = run_cluster(SCRIPT, workers, args=args, env=env, timeout=100, fresh=True)
    shown = f"{way}, {workers} workers, {seconds:.3f} s: {result.codes}\n{describe(result.outputs)}"
    assert list((folder / "tmp").glob("keras-preempt-*")) == [], shown
    assert "Fatal Python error" not in shown, shown
    assert "Exception ignored" not in shown, shown
    if not way.startswith("killed"):
        assert result.codes[0] in STATUS.get(way, STRUCK), shown
        assert all(code in {*STATUS.get(way, STRUCK), *STRUCK} for code in result.codes), shown
    return result


@pytest.mark.parametrize("way", ["notice at the end", pytest.param("error", marks=pytest.mark.chaos)])
def test_the_end_of_the_program_answers_a_notice_and_an_error_does_not(way: str, tmp_path: Path) -> None:
    end(tmp_path, way)
    saved = (tmp_path / "run" / "ckpt-1.index").exists()
    assert saved == (way == "notice at the end")


def test_an_error_that_ends_one_program_ends_the_others_as_that_error(tmp_path: Path) -> None:
    ended = end(tmp_path, "error between steps", 2)
    assert ended.codes == [1, 1]
    assert "\nValueError: Worker 0: not in a step" in ended.outputs[1]


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_worker_that_is_killed_ends_the_other_with_a_status_that_says_so(
    killed: int, tmp_path: Path
) -> None:
    """Told from an error of the program, whose status is 1, and from a preemption, by whoever reads nothing else."""
    ended = end(tmp_path, f"killed {killed}", 2)
    assert ended.codes[1 - killed] == EXIT_WORKER_LOST, describe(ended.outputs)
    assert re.search(r"^keras_preempt\.[\w.]*WorkerLost: ", ended.outputs[1 - killed], re.MULTILINE)
    assert "Another worker is gone" in ended.outputs[1 - killed]


@pytest.mark.chaos
def test_a_worker_that_exits_in_the_middle_hangs_nobody(tmp_path: Path) -> None:
    assert end(tmp_path, "exit", 2).seconds < 60


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_200_exits_in_any_way_at_any_moment(tmp_path: Path) -> None:
    choose = random.Random(5)
    exits = 0
    while exits < 200:
        workers, way = choose.choice([1, 1, 2]), choose.choice(WAYS)
        result = end(tmp_path / str(exits), way, workers, choose.uniform(0, 1.2))
        exits += workers
        if way == "end":
            assert result.codes == [0] * workers
