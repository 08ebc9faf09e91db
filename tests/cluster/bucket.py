"""A bucket of one's own for fits of this process, and what they must not leave behind."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage import budget
from keras_preempt.testing import FakeGcs

URL = "gs://bucket/runs/1"


@contextlib.contextmanager
def bucket_of_this_process(folder: Path) -> Iterator[FakeGcs]:
    """Gives a bucket to which ``gs://bucket`` leads; afterwards no thread and no staged file may be left."""
    staging = folder / "system's temporary directory"
    staging.mkdir()
    with FakeGcs(buckets=("bucket",)) as gcs, pytest.MonkeyPatch.context() as patch:
        for name, value in gcs.environment().items():
            patch.setenv(name, value)
        patch.setattr(budget, "_FIRST_DELAY", 0.01)
        patch.setattr(tempfile, "tempdir", str(staging))
        yield gcs
        assert own_threads() == []
        assert list(staging.iterdir()) == []


def own_threads() -> list[str]:
    """Names of the threads that a fit has started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("keras_preempt")]
