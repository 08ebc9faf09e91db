"""Without a preemption our line changes nothing: the same bits, calls of the user's code and files as without it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import Job, parameters
from tests.ways.on_jax import on_jax
from tests.ways.way import ONE, WORKERS, Fails, Way

#: One of each kind of thing that is looked at, wrapped or traced before training; `make chaos` compares every way.
SHORT_FORM: Mapping[str, tuple[str, ...]] = {
    "py-dataset": (ONE,),
    "generator": (ONE,),
    "gan": (ONE,),
    "arrays": (WORKERS,),
}


def trained(ways: list[Way]) -> list[Way]:
    """Those that train, with the strategies under which they do."""
    found = []
    for way in ways:
        verdicts = {each: told for each, told in way.verdicts.items() if not isinstance(told, Fails)}
        found.append(replace(way, verdicts=verdicts))
    return [way for way in found if way.verdicts]


@pytest.mark.parametrize(("way", "strategy"), parameters(trained(ALL), SHORT_FORM))
def test_our_line_changes_no_training(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).changes_nothing()


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize(
    ("way", "strategy"),
    parameters(trained([here for way in ALL if (here := on_jax(way)) is not None]), SHORT_FORM),
)
def test_so_it_is_on_jax(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy, backend="jax").changes_nothing()
