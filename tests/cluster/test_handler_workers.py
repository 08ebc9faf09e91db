"""Custom loops of several real workers under our handler; and under TensorFlow's, where each weakness must show.

The cases of two workers share two processes: see scripts/handler_pair.py. What is run under TensorFlow's class, which
does not change, is run by `make chaos` only.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cluster import Outcome, RestartPolicy, Supervisor, supervisor
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.cluster.handled_loop import STEPS
from tests.cluster.harness import RunningCluster, describe, run_cluster, start_cluster
from tests.cluster.training import PREEMPTED

SCRIPTS = Path(__file__).parent / "scripts"
ENV = {"GCE_METADATA_IP": "127.0.0.1:9"}
LEFT = "SystemExit 9"

Cases = Callable[[str], list[dict[str, Any]]]


def under_both(shown_by: type[Exception], reason: str = "TensorFlow's class does not do that") -> list[Any]:
    """Both classes; under TensorFlow's a test must fail by this error: see `run_cases`."""
    fails = pytest.mark.xfail(strict=True, raises=shown_by, reason=reason)
    return ["ours", pytest.param("tensorflow", marks=[pytest.mark.chaos, fails])]


def weakness_of_tensorflows(shown_by: type[Exception] = AssertionError) -> pytest.MarkDecorator:
    """Runs a test of `cases` under both classes."""
    return pytest.mark.parametrize("cases", under_both(shown_by), indirect=True)


def run_cases(folder: Path, kind: str, *names: str, codes: tuple[int, int] = (0, 0)) -> list[dict[str, Any]]:
    """What both workers have told, or those that lived on.

    Raises:
        TimeoutError: They do not come to an end.
        RuntimeError: They have failed, or left something behind.
    """
    (folder / "tmp").mkdir()
    env = {**ENV, "TMPDIR": str(folder / "tmp")}
    args = [str(folder), kind, *names]
    try:
        result = run_cluster(SCRIPTS / "handler_pair.py", 2, args=args, env=env, timeout=90)
    except AssertionError as error:
        raise TimeoutError(str(error)) from None
    if result.codes != list(codes) or list((folder / "tmp").glob("keras-preempt-*")):
        raise RuntimeError(f"{result.codes}, expected {codes}\n{describe(result.outputs)}")
    found = [folder / f"{worker}.json" for worker in range(2)]
    return [json.loads(path.read_text()) for path in found if path.exists()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Finds what came of the cases of a class at both workers; those of ours share two processes."""
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def run(kind: str, *names: str) -> list[dict[str, Any]]:
        key = (kind, *names)
        if key not in known:
            known[key] = run_cases(tmp_path_factory.mktemp("cases"), kind, *(names or ("but", "dead_peer")))
        return known[key]

    return run


@pytest.fixture
def cases(request: pytest.FixtureRequest, run: Callable[..., list[dict[str, Any]]]) -> Cases:
    kind = getattr(request, "param", "ours")
    # What TensorFlow's class leaves in the coordination service would spoil the cases after it.
    return lambda name: [worker[name] for worker in run(kind, *([] if kind == "ours" else [name]))]


def endings(case: dict[str, Any]) -> list[str]:
    return [loop["ended"] for loop in case["loops"]]


def ran(case: dict[str, Any]) -> list[int]:
    return [number for loop in case["loops"] for number in loop["ran"]]


@pytest.mark.parametrize("name", ["one_notice", "exits", "two_preemptions_in_one_process", "two_notices"])
def test_all_stop_after_the_step_of_the_notice_and_the_restart_ends_with_the_exact_value(
    name: str, cases: Cases
) -> None:
    value = cases("undisturbed")[0]["loops"][0]["value"]
    for case in cases(name):
        assert ran(case) == list(range(STEPS))
        assert endings(case)[-1] == "finished"
        assert case["loops"][-1]["value"] == value
        assert case["loops"][-1]["runs"] == STEPS


def test_it_exits_with_the_configured_code_or_as_exit_fn_does(cases: Cases) -> None:
    for case in cases("exits"):
        assert endings(case) == [LEFT, "Preempted", "finished"]
        assert [len(loop["ran"]) for loop in case["loops"]] == [4, 3, 1]
    for case in cases("one_notice"):
        assert endings(case) == [LEFT, "finished"]


@weakness_of_tensorflows(shown_by=RuntimeError)
def test_a_second_preemption_in_one_process_is_answered_as_well(cases: Cases) -> None:
    for case in cases("two_preemptions_in_one_process"):
        assert endings(case) == [LEFT, LEFT, "finished"]


def test_notices_one_after_the_other_make_one_save_or_two_with_grace(cases: Cases) -> None:
    chief = cases("two_notices")[0]["loops"][0]
    assert chief["files"] == ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]
    for case in cases("two_notices_with_grace"):
        assert endings(case) == [LEFT]
        assert len(case["loops"][0]["ran"]) > 20
    chief = cases("two_notices_with_grace")[0]["loops"][0]
    assert chief["files"] == ["checkpoint", "ckpt-2.data-00000-of-00001", "ckpt-2.index"]


def test_the_arguments_of_a_save_pass_through(cases: Cases) -> None:
    chief = cases("save_arguments")[0]["loops"][0]
    assert chief["runs"] == 5
    assert chief["files"] == ["checkpoint", "ckpt-105.data-00000-of-00001", "ckpt-105.index"]
    for case in cases("save_arguments"):
        assert ran(case) == list(range(STEPS))
        assert endings(case) == [LEFT, "finished"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_called_before_or_after_each_step_no_step_is_lost_or_repeated(order: str, cases: Cases) -> None:
    value = cases("undisturbed")[0]["loops"][0]["value"]
    for case in cases(f"called_{order}_each_step"):
        assert endings(case) == [LEFT, "finished"]
        assert ran(case) == list(range(STEPS))
        first, second = case["loops"]
        assert second["value"] == value
        assert second["runs_at_start"] == second["started_at"] == len(first["ran"])
        assert second["runs"] == STEPS
    # Of the chief, which writes them: the other worker may be done with its own part before.
    left, again = cases(f"called_{order}_each_step")[0]["loops"]
    assert f"ckpt-{again['runs_at_start']}.index" in left["files"]


def test_a_save_fn_that_does_nothing_leaves_the_directory_empty_and_everyone_exits(cases: Cases) -> None:
    for case in cases("save_fn_that_does_nothing"):
        assert endings(case) == [LEFT]
        assert case["loops"][0]["files"] == []
        assert case["notes"]["given"] == [{"number": 3}]


def test_a_notice_in_the_last_step_leaves_the_finished_state(cases: Cases) -> None:
    for case in cases("in_the_last_step"):
        assert endings(case) == ["finished", "finished"]
        assert [loop["started_at"] for loop in case["loops"]] == [0, STEPS]


@weakness_of_tensorflows()
def test_workers_that_do_not_wait_for_each_other_save_at_the_same_step(cases: Cases) -> None:
    first, second = (case["loops"][0] for case in cases("out_of_step"))
    assert first["ended"] == second["ended"] == LEFT
    assert first["runs"] == second["runs"] < 30


@weakness_of_tensorflows()
def test_no_directory_stays_beside_that_of_the_checkpoints(cases: Cases) -> None:
    for case in cases("undisturbed"):
        assert case["loops"][-1]["beside"] == []


def test_a_handler_that_only_one_worker_deletes_hangs_nobody(cases: Cases) -> None:
    for case in cases("deleted_by_one"):
        assert endings(case) == ["finished"]
        assert ran(case) == list(range(STEPS))


def test_an_error_of_one_worker_is_raised_as_such_at_all(cases: Cases) -> None:
    first, second = cases("resource_exhausted")
    assert endings(first) == ["ResourceExhaustedError Worker 1: OOM when allocating a tensor"]
    assert endings(second) == ["ResourceExhaustedError OOM when allocating a tensor"]
    assert 0 <= first["loops"][0]["left"] - second["notes"]["failed_at"] < 10


def test_nothing_is_left_in_the_processes(run: Callable[..., list[dict[str, Any]]]) -> None:
    for worker in run("ours"):
        for name, case in worker.items():
            assert case["notes"]["threads"] == [], name
            assert case["notes"]["handler"], name


@pytest.mark.parametrize("kind", under_both(TimeoutError, "TensorFlow's class waits without end"))
def test_a_peer_that_died_before_the_agreement_hangs_nobody(kind: str, tmp_path: Path) -> None:
    (living,) = run_cases(tmp_path, kind, "dead_peer", codes=(0, -signal.SIGKILL))
    assert endings(living["dead_peer"]) == ["finished"]


# -- Any number of workers ------------------------------------------------------------------------------


def value_after(steps: int, workers: int) -> float:
    """What the loop comes to, by plain arithmetic."""
    value = 1.0
    for step in range(steps):
        value = value * 0.7 + sum(step * 3 + 1 + member for member in range(workers))
    return value


def told(output: str, word: str) -> str:
    """The rest of the one line that begins with the word."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"{word} ")]
    return line.removeprefix(f"{word} ")


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(8))
def test_any_number_of_workers_at_any_moment(seed: int, tmp_path: Path) -> None:
    choose, workers, steps, directory = random.Random(seed), 1 + seed % 4, 60, tmp_path / "run"

    def start() -> RunningCluster:
        env = {**ENV, "TMPDIR": str(tmp_path)}
        return start_cluster(SCRIPTS / "handler_run.py", workers, args=[str(directory), str(steps)], env=env)

    with start() as running:
        doomed = choose.randrange(workers)
        running.wait_for_line(doomed, rf"^STEP {choose.randrange(2, 40)}$")
        time.sleep(choose.uniform(0, 0.05))
        assert running.signal(doomed, signal.SIGTERM)
        first = running.wait().assert_codes(PREEMPTED)
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]
    with start() as running:
        second = running.wait().assert_ok()
    stopped, resumed = ([json.loads(told(each, "RAN")) for each in end.outputs] for end in (first, second))
    assert all(ran == stopped[0] for ran in stopped)
    for worker in range(workers):
        assert stopped[worker] + resumed[worker] == list(range(steps))
        assert told(second.outputs[worker], "VALUE") == value_after(steps, workers).hex()
    assert list(tmp_path.glob("keras-preempt-*")) == []


def test_a_loop_is_started_again_until_it_ends_with_the_exact_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    lines: list[str] = []
    said: list[str] = []
    steps = 12
    report = Supervisor(
        2,
        [sys.executable, str(SCRIPTS / "handler_run.py"), str(tmp_path / "run"), str(steps)],
        say=said.append,
        log=lambda index, line: lines.append(f"w{index} {line}"),
        policy=RestartPolicy(incarnation_timeout=150),
        environment=lambda incarnation: QUIET_CPU,
    ).run()
    shown = "\n".join([*lines, *said])
    assert report.exit_code == 0, shown
    outcomes = [incarnation.verdict.outcome for incarnation in report.incarnations]
    assert outcomes == [Outcome.PREEMPTED, Outcome.FAILED, Outcome.FINISHED], shown
    # Told from an error of the program, and from a preemption, by whoever reads nothing but the status.
    codes = {exit.index: exit.code for exit in report.incarnations[1].exits}
    assert codes == {0: -signal.SIGKILL, 1: EXIT_WORKER_LOST}, shown
    # The notice to worker 1 came in step 4, and worker 0 may have begun step 5 before it heard of that; the death of
    # worker 0 costs what was not saved.
    saved = [incarnation.safe_step for incarnation in report.incarnations][:2]
    assert saved in ([5, 5], [6, 6]), shown
    ran = [json.loads(line.removeprefix("w1 RAN ")) for line in lines if line.startswith("w1 RAN ")]
    assert ran == [list(range(saved[0])), list(range(saved[0], 8)), list(range(saved[0], steps))]
    value = value_after(steps, 2).hex()
    assert [line for line in lines if "VALUE" in line].count(f"w0 VALUE {value}") == 1
    assert any("there is a checkpoint to go on from" in line for line in said)
    assert "Exception ignored" not in shown
