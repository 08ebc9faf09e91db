"""Models with the structure of Keras' examples train as without the callback, and resume as the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.outcome import assert_identical
from tests.ways.catalogue import structures
from tests.ways.drill import Job, parameters
from tests.ways.way import Exact, Way


@pytest.mark.parametrize(("way", "strategy"), parameters(structures.WAYS))
def test_structure(way: Way, strategy: str, tmp_path: Path) -> None:
    job = Job(tmp_path, way, strategy)
    job.hold()
    if isinstance(way.verdicts[strategy], Exact):
        job.start("plain", plain=True).assert_ok()
        # The same initial values, random numbers, logs and number of traces.
        assert_identical(job.output("plain"), job.output("undisturbed"), job.workers)
