"""Whoever saves or reads a checkpoint can be told how many of its bytes are there, while they move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import Reading, load, verify
from keras_preempt.checkpoint.storage import gcs_transfer
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, Store
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.testing import FakeGcs
from tests.checkpoint.builders import at, commit_parts, shares_of, values_of
from tests.checkpoint.storage.buckets import FAKES, fake_bucket, new_store

SIZE = 36 << 20  # bytes: several files of several pieces each, transferred several at a time
DIRECTORY = "step-00000003/00001-0001"


class Watched:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.total = 0
        self.pieces: list[int] = []

    @contextmanager
    def __call__(self, task: str, total: int) -> Iterator[Moved]:
        self.tasks.append(task)
        self.total += total
        yield self.pieces.append


@pytest.fixture(params=["local", *FAKES])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        yield LocalStore(tmp_path)
        return
    with fake_bucket(request.param) as fake, closing(new_store(fake, tmp_path, connections=2)) as made:
        yield made


def save(store: Store, shown: Watched) -> int:
    """Saves a checkpoint of one worker; returns the bytes of its tensors' files."""
    store.prepare()
    incarnations.claim(store, {})
    table = np.arange(SIZE // 4, dtype=np.uint32)
    tensors, local = {"table": table}, {"mean": np.ones(1000)}
    share = WorkerShare(shares_of(tensors)[0], local, {}, at(3))
    part = write_part(store, DIRECTORY, 0, share, shown=shown)
    commit_parts(store, DIRECTORY, 3, members=1, writers=(0,), values=values_of(tensors))
    return sum(entry.size for entry in part.files)


def test_progress_of_saving_and_reading_is_reported_piece_by_piece(any_store: Store) -> None:
    saved = Watched()
    size = save(any_store, saved)
    assert saved.tasks == [f"Saving {DIRECTORY}"]
    assert saved.total == SIZE + 8000
    info = committed(any_store)[0]
    read, verified, everyone = Watched(), Watched(), Watched()
    load(any_store, info, 0, 1, read)
    verify(any_store, info, verified)
    Reading(any_store, info, everyone).load_all()
    assert read.total == verified.total == everyone.total == size
    for shown in (saved, read, verified, everyone):
        assert sum(shown.pieces) == size
        assert max(shown.pieces) <= 16 << 20
        assert len(shown.pieces) > 4


def test_bytes_that_are_sent_again_count_once(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_transfer, "CHUNK", 1 << 20)
    with closing(new_store(gcs, tmp_path, connections=2)) as store:
        for fault in ("reset", "session-lost", "corrupted-upload"):
            gcs.fail_next(fault, match="upload_id=")
        saved = Watched()
        size = save(store, saved)
        assert sum(saved.pieces) == size
        info = committed(store)[0]
        gcs.fail_next("corrupted", match="mirrored-001.safetensors?alt=media")
        read = Watched()
        load(store, info, 0, 1, read)
        assert sum(read.pieces) == size
        assert gcs.pending_faults == 0
        assert min(saved.pieces) < 0
        assert min(read.pieces) < 0
