"""Every kind of input resumes as its row in docs/tested-combinations.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import INPUTS
from tests.ways.drill import Job, parameters
from tests.ways.way import Way


@pytest.mark.parametrize(("way", "strategy"), parameters(INPUTS))
def test_input(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
