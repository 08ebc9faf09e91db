from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage import budget, gcs_transfer
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs
from tests.checkpoint.storage.buckets import new_store


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A server whose clients try again at once."""
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(budget, "_LONGEST_DELAY", 0.05)
    monkeypatch.setattr(gcs_transfer, "CHUNK", 8 << 20)
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


@pytest.fixture
def bucket(gcs: FakeGcs, tmp_path: Path) -> Iterator[GcsStore]:
    made = new_store(gcs, tmp_path)
    yield made
    made.close()
