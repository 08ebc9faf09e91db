"""Models with the structure of Keras' examples resume as the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue import structures
from tests.ways.drill import Job, parameters
from tests.ways.way import Way


@pytest.mark.parametrize(("way", "strategy"), parameters(structures.WAYS))
def test_structure(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
