"""Two workers train as two replicas and as one device do: with the repairs, and only with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.backend.tensorflow.repairs import REPAIRS
from tests.cluster.harness import run_cluster

SCRIPTS = Path(__file__).parent / "scripts"

#: Batch statistics differ on one device, and so does shuffled data: Keras makes one iterator less there.
_SAME_ON_ONE_DEVICE = (
    "finite, 1",
    "finite, 3",
    "full batches, 3",
    "endless, 3",
    "unknown length, 3",
    "eagerly, 3",
    "overflow, 1",
)
_SAME_ON_REPLICAS = (*_SAME_ON_ONE_DEVICE, "own step, 3", "normalised, shuffled, 3")


def _assert_close(actual: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            _assert_close(actual[key], value, f"{where}: {key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            _assert_close(actual[index], value, f"{where}[{index}]")
    else:
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6, err_msg=where)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("fit")
    for kind, workers in (("one", 1), ("mirrored", 1), ("workers", 2)):
        run_cluster(SCRIPTS / "fit_cases.py", workers, args=[kind, str(output)], timeout=300).assert_ok()
    return {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}


@pytest.mark.parametrize("case", _SAME_ON_ONE_DEVICE)
def test_two_replicas_train_as_one_device_does(results: dict[str, Any], case: str) -> None:
    for part in results["one-0"][case].keys() - {"of_replicas"}:
        _assert_close(results["mirrored-0"][case][part], results["one-0"][case][part], part)


@pytest.mark.parametrize("case", _SAME_ON_REPLICAS)
@pytest.mark.parametrize("worker", [0, 1])
def test_two_workers_train_as_two_replicas_do(results: dict[str, Any], case: str, worker: int) -> None:
    expected = dict(results["mirrored-0"][case])
    expected["of_replicas"] = [expected["of_replicas"][worker]]
    _assert_close(results[f"workers-{worker}"][case], expected, case)


@pytest.mark.parametrize("strategy", ["one-0", "mirrored-0", "workers-0"])
@pytest.mark.parametrize(
    ("case", "executions"),
    [
        # As begun, as ended, and the steps made by then: the last execution runs what is left.
        ("finite, 3", [(0, 2, 3), (3, 5, 6), (6, 8, 9), (9, 11, 10), (0, 2, 13)]),
        # There is always more data, so that Keras overshoots steps_per_epoch=4, on one device too.
        ("endless, 3", [(0, 2, 3), (3, 5, 6), (0, 2, 9), (3, 5, 12)]),
        # The end of the data is found by an execution that has none: begun, never ended.
        ("unknown length, 3", [(0, 2, 3), (3, 5, 6), (6, 8, 9), (9, 11, 10), (0, 2, 13)]),
    ],
)
def test_an_execution_runs_its_steps_or_what_data_is_left(
    results: dict[str, Any], strategy: str, case: str, executions: list[tuple[int, ...]]
) -> None:
    ended = [tuple(batch[:3]) for batch in results[strategy][case]["batches"] if len(batch) > 1]
    assert ended[: len(executions)] == executions


def test_steps_per_execution_changes_no_result(results: dict[str, Any]) -> None:
    one, three = (results["workers-0"][f"finite, {steps}"] for steps in (1, 3))
    for part in ("history", "weights", "evaluate", "predict"):
        _assert_close(three[part], one[part], part)


def test_fit_on_two_workers_needs_every_repair() -> None:
    running = run_cluster(SCRIPTS / "fit_unrepaired.py", 2, timeout=120)
    for output in running.outputs:
        said = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
        needed = {number: said[f"{number} needed"] == "True" for number in range(len(REPAIRS) - 1)}
        if not any(needed.values()):
            pytest.skip("the installed Keras trains under several workers by itself")
        assert {number: said.get(f"without {number}") != "nothing" for number in needed} == needed
