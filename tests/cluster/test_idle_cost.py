"""While nothing happens, the callback asks nobody for anything: counted in a real fit of two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import keras_preempt
from tests.cluster.harness import run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "count_calls.py"
FEW, MANY = 20, 80

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
def test_nobody_is_asked_for_anything_between_two_boundaries(workers: list[Counted], steps: int) -> None:
    for worker, counted in enumerate(workers):
        ours, plain = counted[f"ours {steps}"], counted[f"plain {steps}"]
        asked = _asked(ours, "coordination")
        assert not [what for what in asked if what.startswith("main: ")], asked
        # The watcher sits in one wait for the whole fit, however many steps that has. It begins before the
        # first boundary, unless the machine is so busy that its thread is late.
        assert set(asked) <= {"other: coordination ServiceCoordinator.wait_for"}
        assert all(times == 1 for times in asked.values()), asked
        # Storage is touched by nobody but the thread that looks for requests.
        storage = set(_asked(ours, "storage"))
        assert storage <= ({"other: storage LocalStore.stat"} if worker == 0 else set())
        # Of operations and collectives, only what the training itself runs.
        assert _asked(ours, "collective") == {}
        assert _asked(ours, "operation") == _asked(plain, "operation")


def test_only_one_module_can_reach_the_coordination_service() -> None:
    """So that the counted calls are all the calls there are."""
    package = Path(keras_preempt.__file__).parent
    reaching = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "config_key_value" in path.read_text()
    }
    assert reaching == {"backend/tensorflow/coordination.py"}
