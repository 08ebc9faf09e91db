"""Without a preemption our line changes nothing: the same bits, calls of the user's code and files as without it."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import Job, parameters
from tests.ways.on_jax import on_jax
from tests.ways.way import MIRRORED, ONE, WORKERS, Fails, Way

#: One of each kind of thing that is looked at, wrapped or traced before training; `make chaos` compares every way.
SHORT_FORM: Mapping[str, tuple[str, ...]] = {
    "py-dataset": (ONE,),
    "generator": (ONE,),
    "gan": (ONE,),
    "metric-learning": (ONE,),
    "nested-logs": (ONE,),
    "shared-metrics": (ONE,),
    "arrays": (WORKERS,),
}

_FETCHED = pytest.mark.xfail(
    reason="Keras trains first on what its threads fetched to build the model, and then loses batches by chance: "
    "test_py_batches.py. Our line drops them, and says so"
)


def cases(ways: Iterable[Way], fetch_before_fit: Collection[str]) -> list[ParameterSet]:
    """Returns the ways that train, under each strategy.

    Args:
        ways: All of them.
        fetch_before_fit: The strategies under which Keras builds a model from a batch that its threads have fetched.
    """
    found = []
    for way in ways:
        for strategy, verdict in way.verdicts.items():
            if isinstance(verdict, Fails):
                continue
            case = parameters([replace(way, verdicts={strategy: verdict})], SHORT_FORM)[0]
            has_threads = way.name in ("py-dataset-threads", "py-dataset-processes")
            known = (has_threads and strategy in fetch_before_fit) or way.name == "py-dataset-threads-steps"
            marks = [*case.marks, _FETCHED] if known else case.marks
            found.append(pytest.param(way, strategy, id=case.id, marks=marks))
    return found


@pytest.mark.parametrize(("way", "strategy"), cases(ALL, (MIRRORED, WORKERS)))
def test_our_line_changes_no_training(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).changes_nothing()


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize(("way", "strategy"), cases(filter(None, map(on_jax, ALL)), (ONE,)))
def test_so_it_is_on_jax(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy, backend="jax").changes_nothing()
