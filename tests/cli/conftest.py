"""The command line in this process, and a bucket that it finds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage import budget
from keras_preempt.testing import FakeGcs
from tests.cli import saved_run
from tests.cli.launched import Launched
from tests.cli.saved_run import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command, which ends with a status; returns its output and errors."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        found, output, errors = saved_run.run(capsys, *map(str, arguments))
        assert found == code, output + errors
        return output, errors

    return run


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy of the run that a module has saved."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """Launchers that end with the test."""
    found = Launched(tmp_path)
    yield found
    found.end()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A bucket of the name "bucket", which the commands find, and whose refusals are not waited for."""
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    with FakeGcs(buckets=("bucket",)) as gcs:
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        yield gcs


@pytest.fixture
def in_bucket(bucket: FakeGcs) -> str:
    """A run in the bucket with one checkpoint, which only allows to read."""
    store = saved_run.begin("gs://bucket/runs/1")
    saved_run.save(store, 6)
    store.close()
    bucket.deny.update(("create", "delete", "update", "bucket"))
    return "gs://bucket/runs/1"
