"""Every kind of model, and every way to call `fit`, resumes as its row in docs/tested-combinations.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import FITS, MODELS
from tests.ways.drill import Job, parameters
from tests.ways.way import Way


@pytest.mark.parametrize(("way", "strategy"), parameters(MODELS))
def test_model(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()


@pytest.mark.parametrize(("way", "strategy"), parameters(FITS))
def test_fit(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
