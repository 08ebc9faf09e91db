"""Replicas and workers train as one device does: with the repairs, and only with them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.backend.tensorflow.repairs import REPAIRS
from tests.cluster.harness import run_cluster

SCRIPTS = Path(__file__).parent / "scripts"

_SHORT = ("finite, 3", "both")
"""Cases of `make test`."""

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

# Gradient accumulation, and averages that overwrite the weights.
_EXACT = (
    "accumulated",
    "overwritten",
    "both",
    "weight decay, both",
    "loss scale, both",
    "three steps per execution, both",
    "eagerly, both",
    "embedding, accumulated",
)
_ROUNDED = {
    # The digits of the type in which the optimizer computes; each of a few updates may add another unit of the last.
    "rounded: Adam, both": np.float64,
    "rounded: Nadam, both": np.float64,
    "rounded: float32": np.float32,
    "rounded: float16": np.float16,  # of its gradients
}
_CLIPPED = ("clipped: norm", "clipped: global norm")
_UNITS = 8
"""Units in the last place by which ten steps may differ, each of which adds up in another order."""

_REPLICAS = ("mirrored-0", "mwms-0", "mwms-1")

Results = Callable[[str, str], Any]
"""Gives what a process has come to in a case."""


def _each(cases: Iterable[str]) -> pytest.MarkDecorator:
    params = [pytest.param(case, marks=() if case in _SHORT else pytest.mark.chaos) for case in cases]
    return pytest.mark.parametrize("case", params)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    every = [*_SAME_ON_REPLICAS, *_EXACT, *_ROUNDED, *_CLIPPED]

    @functools.cache
    def run(short: bool) -> dict[str, Any]:
        output = tmp_path_factory.mktemp("results")
        cases = [case for case in every if (case in _SHORT) == short]
        for kind, workers in (("one", 1), ("mirrored", 1), ("mwms", 2), ("one_mirrored", 1)):
            asked = [case for case in cases if kind != "one_mirrored" or case not in _SAME_ON_REPLICAS]
            if short and kind == "one_mirrored":
                continue
            args = [kind, str(output), *asked]
            run_cluster(SCRIPTS / "replica_cases.py", workers, args=args, timeout=300).assert_ok()
        return {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}

    return lambda process, case: run(case in _SHORT)[process][case]


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


@_each(_SAME_ON_ONE_DEVICE)
def test_two_replicas_train_as_one_device_does(results: Results, case: str) -> None:
    actual, expected = results("mirrored-0", case), results("one-0", case)
    for part in expected.keys() - {"of_replicas"}:
        _assert_close(actual[part], expected[part], part)


@_each(_SAME_ON_REPLICAS)
@pytest.mark.parametrize("worker", [0, 1])
def test_two_workers_train_as_two_replicas_do(results: Results, case: str, worker: int) -> None:
    expected = dict(results("mirrored-0", case))
    expected["of_replicas"] = [expected["of_replicas"][worker]]
    _assert_close(results(f"mwms-{worker}", case), expected, case)


@pytest.mark.parametrize("process", ["one-0", "mirrored-0", "mwms-0"])
@pytest.mark.parametrize(
    ("case", "executions"),
    [
        # As begun, as ended, and the steps made by then: the last execution runs what is left.
        ("finite, 3", [(0, 2, 3), (3, 5, 6), (6, 8, 9), (9, 11, 10), (0, 2, 13)]),
        # There is always more data, so that Keras overshoots steps_per_epoch=4, on one device too.
        pytest.param("endless, 3", [(0, 2, 3), (3, 5, 6), (0, 2, 9), (3, 5, 12)], marks=pytest.mark.chaos),
        # The end of the data is found by an execution that has none: begun, never ended.
        pytest.param(
            "unknown length, 3",
            [(0, 2, 3), (3, 5, 6), (6, 8, 9), (9, 11, 10), (0, 2, 13)],
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_an_execution_runs_its_steps_or_what_data_is_left(
    results: Results, process: str, case: str, executions: list[tuple[int, ...]]
) -> None:
    ended = [tuple(batch[:3]) for batch in results(process, case)["batches"] if len(batch) > 1]
    assert ended[: len(executions)] == executions


@pytest.mark.chaos
def test_steps_per_execution_changes_no_result(results: Results) -> None:
    one, three = (results("mwms-0", f"finite, {steps}") for steps in (1, 3))
    for part in ("history", "weights", "evaluate", "predict"):
        _assert_close(three[part], one[part], part)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _numbers(value[name])
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    else:
        yield value


def _assert_within_units(actual: Any, expected: Any, units: int, dtype: type = np.float64) -> None:
    found, wanted = list(_numbers(actual)), list(_numbers(expected))
    assert len(found) == len(wanted) > 0
    # Of a weight as well that is small, being the difference of larger numbers.
    allowed = units * np.finfo(dtype).eps
    np.testing.assert_allclose(found, wanted, rtol=allowed, atol=allowed)


@_each(["accumulated", "both"])
def test_gradients_are_accumulated(results: Results, case: str) -> None:
    updates = [batch[2] for batch in results("one-0", case)["batches"]]
    assert updates == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.chaos
def test_each_branch_changes_the_weights(results: Results) -> None:
    assert len({json.dumps(results("one-0", case)["weights"]) for case in _EXACT[:5]}) == 5


@_each(["loss scale, both", "eagerly, both"])
def test_what_changes_no_result_changes_none_to_the_bit(results: Results, case: str) -> None:
    """Neither a step per execution, nor the power of two of a loss scale, nor graphs."""
    assert results("one-0", case)["weights"] == results("one-0", "three steps per execution, both")["weights"]


@pytest.mark.chaos
@pytest.mark.parametrize("case", sorted({*_EXACT, *_ROUNDED, *_CLIPPED} - {*_SHORT}))
def test_a_single_replica_trains_as_one_device_does(results: Results, case: str) -> None:
    assert results("one_mirrored-0", case) == results("one-0", case)


@pytest.mark.parametrize("process", _REPLICAS)
@_each(_EXACT)
def test_two_replicas_have_the_weights_of_one_device_to_the_bit(
    results: Results, case: str, process: str
) -> None:
    actual, expected = results(process, case), results("one-0", case)
    assert actual["weights"] == expected["weights"]
    # Metrics are quotients of what the replicas have counted.
    _assert_within_units(actual["batches"], expected["batches"], 1)
    _assert_within_units(actual["history"], expected["history"], 1)


@pytest.mark.parametrize("process", _REPLICAS)
@_each(_ROUNDED)
def test_two_replicas_have_the_weights_of_one_device_but_for_rounding(
    results: Results, case: str, process: str
) -> None:
    _assert_within_units(results(process, case), results("one-0", case), _UNITS, _ROUNDED[case])


@_each(_CLIPPED)
def test_two_workers_clip_as_two_replicas_do(results: Results, case: str) -> None:
    _assert_within_units(results("mwms-0", case), results("mirrored-0", case), 1)
    assert results("mwms-1", case)["weights"] == results("mwms-0", case)["weights"]


def _said(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


def test_fit_on_two_workers_needs_every_repair() -> None:
    for output in run_cluster(SCRIPTS / "unrepaired.py", 2, args=["mwms"]).outputs:
        said = _said(output)
        needed = {number: said[f"{number} needed"] == "True" for number in range(len(REPAIRS) - 1)}
        if not any(needed.values()):
            pytest.skip("the installed Keras trains under several workers by itself")
        assert {number: said.get(str(number)) != "trained" for number in needed} == needed


@pytest.mark.chaos
def test_mirrored_replicas_need_the_repair() -> None:
    (output,) = run_cluster(SCRIPTS / "unrepaired.py", 1, args=["mirrored"]).assert_ok().outputs
    said = _said(output)
    if said["mirrored needed"] == "False":
        pytest.skip("the installed Keras branches together by itself")
    for what in [f"{replicas} {way}" for replicas in (1, 2) for way in ("accumulated", "overwritten")]:
        found = [said[f"{what}{more}"] for more in ("", ", repaired", ", undone")]
        assert found == ["RuntimeError", "trained", "RuntimeError"], what
