"""A custom loop of one process under our handler; and under TensorFlow's, where each of these tests must fail.

The loops of each class share a few processes: see scripts/handler_local.py. Those of TensorFlow's class are run by
`make chaos` only, since it does not change.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.handled_loop import STEPS
from tests.cluster.harness import ClusterResult, start_cluster

SCRIPT = Path(__file__).parent / "scripts" / "handler_local.py"
GOOGLE = "on_google_compute_engine_without_a_gpu"
AT_ONCE = (
    ("saving_takes_long", "five_seconds_of_grace"),
    ("resumed_after_many_steps",),
    ("an_earlier_deadline_in_the_countdown", "the_watcher_fails_once"),
    (GOOGLE,),  # TensorFlow's class does not live through that.
)
"""The cases that mostly wait for the end of a grace period, each in a process; all others share one more."""

ALL_OTHERS = "all others"

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
    """Finds what came of a case under a class; the processes of a class are run once, all at the same time."""
    known: dict[str, list[tuple[Path, ClusterResult]]] = {}

    def start(kind: str) -> Iterator[tuple[Path, ClusterResult]]:
        # Nobody is at this address, so that TensorFlow does not wait.
        env = {"GCE_METADATA_IP": "127.0.0.1:9"}
        running = []
        with ExitStack() as stack:
            for names in (*AT_ONCE, ("but", *itertools.chain(*AT_ONCE))):
                folder = tmp_path_factory.mktemp(kind)
                cluster = start_cluster(SCRIPT, 1, args=[str(folder), kind, *names], env=env)
                running.append((folder, stack.enter_context(cluster)))
            for folder, cluster in running:
                yield folder, cluster.wait()

    def run(kind: str, name: str) -> dict[str, Any]:
        if kind not in known:
            known[kind] = list(start(kind))
        number = next((number for number, names in enumerate(AT_ONCE) if name in names), -1)
        folder, result = known[kind][number]
        result.assert_ok()
        found: dict[str, Any] = json.loads((folder / "0.json").read_text())
        return found if name == ALL_OTHERS else found[name]

    return run


@pytest.fixture
def found(request: pytest.FixtureRequest, run: Callable[[str, str], dict[str, Any]]) -> Found:
    return lambda name: run(getattr(request, "param", "ours"), name)


def preempted(loop: dict[str, Any]) -> bool:
    return bool(loop["ended"] == "SystemExit 9")


def no_step_is_lost_or_repeated(found: Found, name: str) -> None:
    first, second = found(name)["loops"]
    assert preempted(first)
    assert second["ended"] == "finished"
    assert first["ran"] + second["ran"] == list(range(STEPS))
    assert second["value"] == found("undisturbed")["loops"][0]["value"]
    assert second["started_at"] == len(first["ran"])
    assert second["runs"] == STEPS


@both
def test_a_notice_saves_and_the_restart_ends_with_the_exact_value(found: Found) -> None:
    no_step_is_lost_or_repeated(found, "in_a_step")
    first, _ = found("in_a_step")["loops"]
    assert first["runs"] == len(first["ran"])


def the_count_is_that_of_the_checkpoint(found: Found, name: str) -> None:
    no_step_is_lost_or_repeated(found, name)
    first, second = found(name)["loops"]
    assert second["runs_at_start"] == second["started_at"]
    assert f"ckpt-{second['runs_at_start']}.index" in first["files"]


@both
def test_called_before_each_step_no_step_is_lost_and_the_count_is_right(found: Found) -> None:
    the_count_is_that_of_the_checkpoint(found, "called_before_each_step")


@weakness_of_tensorflows
def test_called_after_each_step_no_step_is_repeated_and_the_count_is_right(found: Found) -> None:
    the_count_is_that_of_the_checkpoint(found, "called_after_each_step")


@weakness_of_tensorflows
def test_no_step_is_run_after_the_one_in_which_the_notice_came(found: Found) -> None:
    assert found("in_a_step")["loops"][0]["ran"] == [0, 1, 2, 3]


@both
def test_training_that_is_over_ends_as_ever(found: Found) -> None:
    for name in ("in_the_last_step", "training_ends_within_the_grace"):
        assert [loop["ended"] for loop in found(name)["loops"]] == ["finished"]


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


def test_a_signal_is_heard_beside_a_watcher_that_sees_nothing(found: Found) -> None:
    (loop,) = found("the_watcher_sees_nothing")["loops"]
    assert preempted(loop)
    assert loop["ran"] == [0, 1, 2, 3]


def test_an_error_of_a_step_is_raised_by_the_run_of_that_step(found: Found) -> None:
    assert found("a_step_fails")["notes"]["raised_by"] == [3, 4]


def test_of_five_seconds_of_grace_a_loop_with_small_steps_uses_some(found: Found) -> None:
    case = found("five_seconds_of_grace")
    (loop,), notes = case["loops"], case["notes"]
    assert preempted(loop)
    assert loop["left"] < notes["sent"] + notes["grace"]
    assert len(loop["ran"]) > 60 + 10
    assert "ckpt-2.index" in loop["files"]  # One at the notice, and one at the end.


@weakness_of_tensorflows
def test_a_notice_does_not_wait_for_the_interval_of_the_users_manager(found: Found) -> None:
    notes = found("with_a_manager_that_saves_rarely")["notes"]
    assert notes["saved"] == notes["exited"] == 3


@weakness_of_tensorflows
@pytest.mark.parametrize(
    ("name", "note", "value"),
    [
        ("in_the_last_step", "saved", STEPS),
        ("training_ends_within_the_grace", "saved", STEPS),
        ("twice_in_one_process", "runs", [2, 4]),
        ("the_count_in_the_users_own_saves", "runs", 5),
    ],
)
def test_the_last_step_is_saved_and_the_count_is_right(
    name: str, note: str, value: object, found: Found
) -> None:
    assert found(name)["notes"][note] == value


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


def test_nothing_is_left_in_the_process(found: Found) -> None:
    for case in [
        *found(ALL_OTHERS).values(),
        *(found(name) for name in itertools.chain(*AT_ONCE)),
    ]:
        assert case["notes"]["threads"] == []
        assert case["notes"]["handler"]
