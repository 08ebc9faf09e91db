"""A Slurm for the tests of this folder; without the packages they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.daemons import Slurm, why_not


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    if why := why_not():
        pytest.skip(why)
    with Slurm() as running:
        yield running
