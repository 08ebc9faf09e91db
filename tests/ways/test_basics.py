"""The plainest jobs are exact; a drill of a way fails if they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue.basics import WAYS
from tests.ways.drill import Job, parameters
from tests.ways.way import Way


@pytest.mark.parametrize(("way", "strategy"), parameters(WAYS))
def test_basic(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
