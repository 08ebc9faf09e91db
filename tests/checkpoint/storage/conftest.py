from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage import budget, gcs_transfer
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import FAKES, fake_bucket, new_store


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stores try again at once."""
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(budget, "_LONGEST_DELAY", 0.05)


@pytest.fixture
def gcs(quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A server whose clients try again at once."""
    monkeypatch.setattr(gcs_transfer, "CHUNK", 8 << 20)
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


@pytest.fixture
def bucket(gcs: FakeGcs, tmp_path: Path) -> Iterator[GcsStore]:
    made = new_store(gcs, tmp_path)
    assert isinstance(made, GcsStore)
    yield made
    made.close()


@pytest.fixture(params=[scheme for scheme in FAKES if scheme != "gs"])
def fake(quick: None, request: pytest.FixtureRequest) -> Iterator[FakeBucket]:
    """A server of S3 or Azure, to which the environment leads, and whose clients try again at once."""
    with fake_bucket(request.param) as server:
        yield server


@pytest.fixture
def remote(fake: FakeBucket, tmp_path: Path) -> Iterator[BucketStore]:
    """A store in `fake`."""
    made = new_store(fake, tmp_path)
    yield made
    made.close()
