"""Every way that can be gone where Keras runs on JAX resumes as its column in docs/tested-combinations.md says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import Job, parameters
from tests.ways.on_jax import NOT_DRILLED, OTHERWISE, SHORT_FORM, on_jax
from tests.ways.way import ONE, Way

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

#: The ways that are preempted as an epoch begins alone, before its iterator is made.
STRIKES = {"loop-over-training-data": ("epoch 1",)}

HERE = [here for way in ALL if (here := on_jax(way)) is not None]


@pytest.mark.parametrize(("way", "strategy"), parameters(HERE, dict.fromkeys(SHORT_FORM, (ONE,))))
def test_on_jax(way: Way, strategy: str, tmp_path: Path) -> None:
    strikes = STRIKES.get(way.name) if way.name in SHORT_FORM else None
    Job(tmp_path, way, strategy, backend="jax").hold(strikes)


def test_what_differs_on_jax_is_a_way_of_the_catalogue() -> None:
    assert {*OTHERWISE, *NOT_DRILLED} <= {way.name for way in ALL}
    assert {*SHORT_FORM} <= {way.name for way in HERE}
