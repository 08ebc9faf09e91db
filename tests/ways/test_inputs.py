"""Every kind of input resumes as its row in docs/tested-combinations.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.catalogue import basics, inputs_augmented, inputs_python, inputs_tfdata, shared_shuffles
from tests.ways.drill import Job, parameters
from tests.ways.way import Way

WAYS = (
    *basics.WAYS,
    *inputs_tfdata.WAYS,
    *shared_shuffles.WAYS,
    *inputs_augmented.WAYS,
    *inputs_python.WAYS,
)


@pytest.mark.parametrize(("way", "strategy"), parameters(WAYS))
def test_input(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy).hold()
