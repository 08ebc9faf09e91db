"""A custom loop of one process under our handler; and under TensorFlow's, where each of these tests must fail.

The loops of each class share one process: see scripts/handler_local.py. Those of TensorFlow's class are run by
`make chaos` only, since it does not change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.handled_loop import STEPS
from tests.cluster.harness import run_cluster

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "handler_local.py"
TOGETHER = (
    "undisturbed",
    "in_a_step",
    "called_before_each_step",
    "called_after_each_step",
    "in_the_last_step",
    "training_ends_within_the_grace",
    "saving_takes_long",
    "resumed_after_many_steps",
    "the_watcher_fails_once",
    "the_watcher_sees_nothing",
    "a_step_fails",
    "five_seconds_of_grace",
    "twice_in_one_process",
    "with_a_manager_that_saves_rarely",
    "the_count_in_the_users_own_saves",
    "an_earlier_deadline_in_the_countdown",
    "a_notice_that_is_withdrawn",
)
GOOGLE = "on_google_compute_engine_without_a_gpu"

Found = Callable[[str], dict[str, Any]]

weakness_of_tensorflows = pytest.mark.parametrize(
    "found",
    [
        "ours",
        pytest.param(
            "tensorflow", marks=[pytest.mark.chaos, pytest.mark.xfail(strict=True, raises=AssertionError)]
        ),
    ],
    indirect=True,
)
both = pytest.mark.parametrize(
    "found", ["ours", pytest.param("tensorflow", marks=pytest.mark.chaos)], indirect=True
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Finds what came of a case under a class; each process is run once."""
    known: dict[tuple[str, bool], dict[str, Any]] = {}

    def run(kind: str, name: str) -> dict[str, Any]:
        alone = kind == "tensorflow" and name == GOOGLE  # It does not live through that.
        key = (kind, alone)
        if key not in known:
            folder = tmp_path_factory.mktemp(kind)
            names = [GOOGLE] if alone else TOGETHER if kind == "tensorflow" else [*TOGETHER, GOOGLE]
            # Nobody is at this address, so that TensorFlow does not wait.
            env = {"PYTHONPATH": str(ROOT), "GCE_METADATA_IP": "127.0.0.1:9"}
            run_cluster(SCRIPT, 1, args=[str(folder), kind, *names], env=env).assert_ok()
            known[key] = json.loads((folder / "0.json").read_text())
        found: dict[str, Any] = known[key][name]
        return found

    return run


@pytest.fixture
def found(request: pytest.FixtureRequest, run: Callable[[str, str], dict[str, Any]]) -> Found:
    return lambda name: run(request.param, name)


def preempted(loop: dict[str, Any]) -> bool:
    return bool(loop["ended"] == "SystemExit 9")


@both
def test_a_notice_saves_and_the_restart_ends_with_the_exact_value(found: Found) -> None:
    first, second = found("in_a_step")["loops"]
    assert preempted(first)
    assert second["ended"] == "finished"
    assert first["ran"] + second["ran"] == list(range(STEPS))
    assert second["started_at"] == len(first["ran"]) == first["runs"]
    assert second["runs"] == STEPS
    assert second["value"] == found("undisturbed")["loops"][0]["value"]


def no_step_is_lost_or_repeated(loops: list[dict[str, Any]], value: float) -> None:
    first, second = loops
    assert preempted(first)
    assert second["ended"] == "finished"
    assert first["ran"] + second["ran"] == list(range(STEPS))
    assert second["value"] == value
    assert second["runs_at_start"] == second["started_at"] == len(first["ran"])
    assert f"ckpt-{second['runs_at_start']}.index" in first["files"]
    assert second["runs"] == STEPS


@both
def test_called_before_each_step_no_step_is_lost_and_the_count_is_that_of_the_checkpoint(
    found: Found,
) -> None:
    value = found("undisturbed")["loops"][0]["value"]
    no_step_is_lost_or_repeated(found("called_before_each_step")["loops"], value)


@weakness_of_tensorflows
def test_called_after_each_step_no_step_is_repeated_and_the_count_is_that_of_the_checkpoint(
    found: Found,
) -> None:
    value = found("undisturbed")["loops"][0]["value"]
    no_step_is_lost_or_repeated(found("called_after_each_step")["loops"], value)


@weakness_of_tensorflows
def test_no_step_is_run_after_the_one_in_which_the_notice_came(found: Found) -> None:
    assert found("in_a_step")["loops"][0]["ran"] == [0, 1, 2, 3]


@weakness_of_tensorflows
def test_a_notice_in_the_last_step_is_not_lost(found: Found) -> None:
    assert found("in_the_last_step")["notes"]["saved"] == STEPS


@both
def test_training_that_is_over_ends_as_ever(found: Found) -> None:
    for name in ("in_the_last_step", "training_ends_within_the_grace"):
        assert [loop["ended"] for loop in found(name)["loops"]] == ["finished"]


@weakness_of_tensorflows
def test_training_that_ends_within_the_grace_makes_a_final_save(found: Found) -> None:
    assert found("training_ends_within_the_grace")["notes"]["saved"] == STEPS


@weakness_of_tensorflows
@pytest.mark.parametrize("name", ["saving_takes_long", "resumed_after_many_steps"])
def test_the_last_save_is_over_before_the_grace_is(found: Found, name: str) -> None:
    """Whether saving takes its time, or the steps before the restart would make those after it look short."""
    (loop,), notes = found(name)["loops"], found(name)["notes"]
    assert preempted(loop)
    assert loop["left"] < notes["sent"] + notes["grace"]
    assert len(loop["ran"]) > 10  # It was used all the same.


@weakness_of_tensorflows
def test_a_watcher_that_fails_once_is_asked_again(found: Found) -> None:
    assert preempted(found("the_watcher_fails_once")["loops"][0])


def test_a_signal_is_heard_beside_a_watcher_that_sees_nothing(
    run: Callable[[str, str], dict[str, Any]],
) -> None:
    (loop,) = run("ours", "the_watcher_sees_nothing")["loops"]
    assert preempted(loop)
    assert loop["ran"] == [0, 1, 2, 3]


def test_an_error_of_a_step_is_raised_by_the_run_of_that_step(
    run: Callable[[str, str], dict[str, Any]],
) -> None:
    assert run("ours", "a_step_fails")["notes"]["raised_by"] == [3, 4]


def test_of_five_seconds_of_grace_a_loop_with_small_steps_uses_some(
    run: Callable[[str, str], dict[str, Any]],
) -> None:
    case = run("ours", "five_seconds_of_grace")
    (loop,), notes = case["loops"], case["notes"]
    assert preempted(loop)
    assert loop["left"] < notes["sent"] + notes["grace"]
    assert len(loop["ran"]) > 60 + 10
    assert "ckpt-2.index" in loop["files"]  # One at the notice, and one at the end.


@weakness_of_tensorflows
def test_the_count_goes_on_in_a_second_handler_of_one_process(found: Found) -> None:
    assert found("twice_in_one_process")["notes"]["runs"] == [2, 4]


@weakness_of_tensorflows
def test_a_notice_does_not_wait_for_the_interval_of_the_users_manager(found: Found) -> None:
    notes = found("with_a_manager_that_saves_rarely")["notes"]
    assert notes["saved"] == notes["exited"] == 3


@weakness_of_tensorflows
def test_the_count_is_right_in_what_the_user_saves(found: Found) -> None:
    assert found("the_count_in_the_users_own_saves")["notes"]["runs"] == 5


@weakness_of_tensorflows
def test_a_machine_of_google_without_a_gpu_is_saved_at_maintenance_and_at_a_second_notice(
    found: Found,
) -> None:
    (loop,) = found(GOOGLE)["loops"]
    assert preempted(loop)
    assert loop["ran"][-1] == 60
    assert loop["files"] == ["checkpoint", "ckpt-2.data-00000-of-00001", "ckpt-2.index"]


@weakness_of_tensorflows
def test_a_second_notice_is_heard_and_the_earlier_of_the_two_deadlines_counts(found: Found) -> None:
    (loop,) = found("an_earlier_deadline_in_the_countdown")["loops"]
    assert preempted(loop)
    assert len(loop["ran"]) > 20  # The first one alone left time for all steps.


@weakness_of_tensorflows
def test_a_notice_that_is_withdrawn_lets_go(found: Found) -> None:
    case = found("a_notice_that_is_withdrawn")
    assert case["loops"][0]["ended"] == "finished"
    # Once, when the round of the notice is heard of: at step 4, or on a busy machine later. Not once more at the end.
    assert 4 <= case["notes"]["saved"] < STEPS


def test_nothing_is_left_in_the_process(run: Callable[[str, str], dict[str, Any]]) -> None:
    for name in (*TOGETHER, GOOGLE):
        notes = run("ours", name)["notes"]
        assert notes["threads"] == []
        assert notes["handler"]
