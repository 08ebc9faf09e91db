"""What shares a shuffle with the training data gives it no other order after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue import shared_shuffles
from tests.ways.drill import Job, parameters
from tests.ways.way import Way


@pytest.mark.parametrize(("way", "strategy"), parameters(shared_shuffles.WAYS))
def test_shared_shuffle(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
