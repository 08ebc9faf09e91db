"""Every way that can be gone where Keras runs on torch resumes as promised. On its own, in an environment with torch:

KERAS_BACKEND=torch python -m pytest tests/ways/test_on_torch.py -m ''
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ways.catalogue import inputs_torch
from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import Job, parameters
from tests.ways.on_torch import HERE, OTHERWISE, SHORT_FORM
from tests.ways.test_without_ours import cases
from tests.ways.way import ONE, Way

on_torch = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="Keras does not run on torch here"
)


@on_torch
@pytest.mark.parametrize(("way", "strategy"), parameters(HERE, dict.fromkeys(SHORT_FORM, (ONE,))))
def test_on_torch(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy, backend="torch").hold()


@on_torch
@pytest.mark.chaos
@pytest.mark.parametrize(("way", "strategy"), cases(HERE, (ONE,)))
def test_our_line_changes_no_training_on_torch(way: Way, strategy: str, tmp_path: Path) -> None:
    Job(tmp_path, way, strategy, backend="torch").changes_nothing()


def test_what_differs_on_torch_is_a_way_of_the_catalogue() -> None:
    assert {*OTHERWISE, *SHORT_FORM} <= {way.name for way in (*inputs_torch.WAYS, *ALL)}
