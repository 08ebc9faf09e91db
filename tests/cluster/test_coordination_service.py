"""TensorFlow's coordination service keeps the promises of a `Coordinator`, between two real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.backend.tensorflow.coordination import ServiceCoordinator
from tests.cluster.harness import ClusterResult, run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "coordination.py"


@pytest.fixture(scope="module")
def cluster() -> ClusterResult:
    return run_cluster(SCRIPT, 2, timeout=120).assert_ok()


@pytest.fixture(scope="module")
def results(cluster: ClusterResult) -> list[dict[str, Any]]:
    lines = [line for output in cluster.outputs for line in output.splitlines() if line.startswith("result ")]
    return [json.loads(line.removeprefix("result ")) for line in lines]


def test_each_of_many_keys_was_inserted_by_exactly_one_and_both_read_the_same(
    results: list[dict[str, Any]],
) -> None:
    first, second = results
    assert sorted(first["won"] + second["won"]) == list(range(100))
    assert first["values"] == second["values"]
    assert [index for index, who in enumerate(first["values"]) if who == "1"] == sorted(second["won"])
    assert first["won"]
    assert second["won"]


def test_a_blocking_wait_lets_python_run_and_returns_what_the_other_inserted(
    results: list[dict[str, Any]],
) -> None:
    for member, result in enumerate(results):
        assert result["counted"] > 1000
        assert result["early"] == []
        (late,) = result["late"]
        assert late.startswith(f"from {1 - member}, ")
        assert int(late[9:]) > 10_000


def test_a_wait_ends_in_time(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "'never' did not appear within 0.3 s" in result["timeout"]
        assert 0.25 < result["waited"] < 30
        assert result["no time left"]


def test_deleting_removes_what_lies_below_and_nothing_beside(results: list[dict[str, Any]]) -> None:
    assert results[1]["again"] == [True, True, False]


def test_an_error_that_one_reports_ends_the_collectives_of_the_other(results: list[dict[str, Any]]) -> None:
    assert [result["sum"] for result in results] == [3.0, 3.0]
    assert "worker 1 gives up" in results[0]["collective"]
    assert results[0]["collective ended after"] < 30


def test_when_the_leader_is_gone_every_insert_and_wait_says_that_coordination_is_lost(
    cluster: ClusterResult,
) -> None:
    lost = [line for line in cluster.outputs[1].splitlines() if line.startswith("lost ")]
    assert lost == ["lost put_if_absent", "lost wait_for"]


def test_a_call_that_a_frozen_leader_does_not_answer_lets_python_run(cluster: ClusterResult) -> None:
    """Else this process is frozen with it, deadlines and heartbeat included, and nobody ends it."""
    told = [line for line in cluster.outputs[1].splitlines() if line.startswith(("pending", "answered"))]
    calls = ("gone", "put_if_absent", "report_error")
    assert told == [f"{word} {call}" for call in calls for word in ("pending", "answered")]


def test_a_process_without_the_service_is_told_to_make_its_strategy_first() -> None:
    with pytest.raises(CoordinationLost, match="Create the MultiWorkerMirroredStrategy first"):
        ServiceCoordinator(0, 2)
