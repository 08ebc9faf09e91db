"""Gradient accumulation, and averages that overwrite the weights: on replicas and workers as on one device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.harness import run_cluster

SCRIPTS = Path(__file__).parent / "scripts"

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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("branches")
    for kind, workers in (("one", 1), ("one_mirrored", 1), ("mirrored", 1), ("workers", 2)):
        run_cluster(SCRIPTS / "branch_cases.py", workers, args=[kind, str(output)], timeout=300).assert_ok()
    return {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}


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
    np.testing.assert_allclose(
        found, wanted, rtol=units * np.finfo(dtype).eps, atol=units * np.finfo(dtype).eps
    )


def test_the_cases_do_what_they_are_for(results: dict[str, Any]) -> None:
    one = results["one-0"]
    assert [step[1] for step in one["accumulated"]["steps"]] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert len({json.dumps(one[case]["weights"]) for case in _EXACT[:5]}) == 5
    # As they should be: neither a step per execution, nor the power of two of a loss scale, nor graphs change a result.
    for same in ("loss scale, both", "three steps per execution, both", "eagerly, both"):
        assert one[same]["weights"] == one["eagerly, both"]["weights"]


@pytest.mark.parametrize("case", [*_EXACT, *_ROUNDED, *_CLIPPED])
def test_a_single_replica_trains_as_one_device_does(results: dict[str, Any], case: str) -> None:
    assert results["one_mirrored-0"][case] == results["one-0"][case]


@pytest.mark.parametrize("strategy", ["mirrored-0", "workers-0", "workers-1"])
@pytest.mark.parametrize("case", _EXACT)
def test_two_replicas_have_the_weights_of_one_device_to_the_bit(
    results: dict[str, Any], case: str, strategy: str
) -> None:
    actual, expected = results[strategy][case], results["one-0"][case]
    assert actual["weights"] == expected["weights"]
    # Metrics are quotients of what the replicas have counted.
    _assert_within_units(actual["steps"], expected["steps"], 1)
    _assert_within_units(actual["history"], expected["history"], 1)


@pytest.mark.parametrize("strategy", ["mirrored-0", "workers-0", "workers-1"])
@pytest.mark.parametrize("case", _ROUNDED)
def test_two_replicas_have_the_weights_of_one_device_but_for_rounding(
    results: dict[str, Any], case: str, strategy: str
) -> None:
    _assert_within_units(results[strategy][case], results["one-0"][case], _UNITS, _ROUNDED[case])


@pytest.mark.parametrize("case", _CLIPPED)
def test_two_workers_clip_as_two_replicas_do(results: dict[str, Any], case: str) -> None:
    _assert_within_units(results["workers-0"][case], results["mirrored-0"][case], 1)
    assert results["workers-1"][case]["weights"] == results["workers-0"][case]["weights"]


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_mirrored_replicas_need_the_repair(replicas: str) -> None:
    (output,) = run_cluster(SCRIPTS / "branches_unrepaired.py", 1, args=[replicas]).assert_ok().outputs
    if "needed: False" in output.splitlines():
        pytest.skip("the installed Keras branches together by itself")
    for what in ("accumulated", "overwritten"):
        assert f"{what}: RuntimeError" in output
        assert f"{what}, repaired: trained" in output
        assert f"{what}, undone: RuntimeError" in output
