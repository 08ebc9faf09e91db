"""Training with other callbacks, in any order with ours, is the same with and without a preemption."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import find
from tests.ways.catalogue.callbacks import PLACES, WAYS
from tests.ways.drill import Job, parameters
from tests.ways.way import ONE, Exact, Way


@pytest.mark.parametrize(("way", "strategy"), parameters(WAYS))
def test_callback(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()


@pytest.mark.chaos
@pytest.mark.parametrize("place", ["first", "middle"])
@pytest.mark.parametrize("name", ["early-stopping", "swap-ema-epoch"])
def test_it_does_not_matter_where_ours_stands(name: str, place: str, tmp_path: Path) -> None:
    Job(tmp_path, find(name), ONE, place).hold()


@pytest.mark.parametrize(
    "way", [pytest.param(w, id=w.name) for w in WAYS if isinstance(w.verdicts[ONE], Exact)]
)
@pytest.mark.chaos
def test_it_does_not_matter_when(way: Way, tmp_path: Path) -> None:
    Job(tmp_path, way, ONE).hold(PLACES)


def test_weights_swapped_for_a_validation_are_not_saved_as_the_weights(tmp_path: Path) -> None:
    Job(tmp_path, find("swap-ema"), ONE).hold(["test_batch 3"])
