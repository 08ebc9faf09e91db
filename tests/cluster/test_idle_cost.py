"""While nothing happens, the callback asks nobody for anything: counted in a real fit of two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import keras_preempt
from tests.cluster.harness import run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "count_calls.py"
FEW, MANY = 20, 200

Counted = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[Counted]:
    """What each worker counted, by fit."""
    folder = tmp_path_factory.mktemp("counted")
    run_cluster(SCRIPT, 2, args=[str(folder / "out"), str(folder / "runs")], timeout=300).assert_ok()
    return [json.loads((folder / f"out.{worker}.json").read_text()) for worker in range(2)]


def _asked(counted: dict[str, int], kind: str) -> dict[str, int]:
    return {what: times for what, times in counted.items() if f": {kind} " in what}


def test_the_counters_count(workers: list[Counted]) -> None:
    for counted in workers:
        assert sum(_asked(counted["control"], "coordination").values()) == 1
        assert sum(_asked(counted["control"], "collective").values()) == 1
        assert {what.split(": ")[1] for what in _asked(counted["control"], "storage")} == {
            "storage LocalStore.children",
            "storage os.scandir",
        }
        operations = _asked(counted[f"plain {FEW}"], "operation")
        assert operations
        assert max(operations.values()) == FEW - 2


@pytest.mark.parametrize("steps", [FEW, MANY])
def test_never_calls_the_coordination_service_between_two_boundaries(
    workers: list[Counted], steps: int
) -> None:
    for counted in workers:
        asked = _asked(counted[f"ours {steps}"], "coordination")
        assert not [what for what in asked if what.startswith("main: ")], asked
        # The watcher sits in one wait for the whole fit, however many steps that has. It begins before the
        # first boundary, unless the machine is so busy that its thread is late.
        assert set(asked) <= {
            "other: coordination ServiceCoordinator.wait_for",
            "other: coordination CoordinationKeys.get",
        }
        assert all(times == 1 for times in asked.values()), asked


@pytest.mark.parametrize("steps", [FEW, MANY])
def test_storage_is_touched_by_nobody_but_the_thread_that_looks_for_requests(
    workers: list[Counted], steps: int
) -> None:
    for worker, counted in enumerate(workers):
        asked = set(_asked(counted[f"ours {steps}"], "storage"))
        assert asked <= ({"other: storage LocalStore.stat"} if worker == 0 else set())


@pytest.mark.parametrize("steps", [FEW, MANY])
def test_never_runs_a_collective_or_any_operation_that_the_training_itself_does_not(
    workers: list[Counted], steps: int
) -> None:
    for counted in workers:
        assert _asked(counted[f"ours {steps}"], "collective") == {}
        ours, plain = (_asked(counted[f"{name} {steps}"], "operation") for name in ("ours", "plain"))
        assert ours == plain


def test_only_one_module_can_reach_the_coordination_service() -> None:
    """So that the counted calls are all the calls there are."""
    package = Path(keras_preempt.__file__).parent
    reaching = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "config_key_value" in path.read_text()
    }
    assert reaching == {"backend/tensorflow/coordination.py"}
