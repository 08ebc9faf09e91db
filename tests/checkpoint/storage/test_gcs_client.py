"""Training draws the same random numbers whatever the network does."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.storage import budget
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs


def test_nothing_that_a_store_does_draws_from_the_random_numbers_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)
        for kind, match in (("503", "multipart"), ("reset", "multipart"), ("429", "alt=media")):
            gcs.fail_next(kind, match=match)
        store.prepare()
        store.create("small", b"data")
        with store.writer("large") as writer:
            writer.write(bytes(9 << 20))
        with store.open("large") as stream:
            assert len(stream.read()) == 9 << 20
        log = store.append_log("events/a.jsonl")
        log.write(b"{}\n")
        log.close()
        store.delete_tree("events")
        store.close()
        assert gcs.pending_faults == 0
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


def test_the_training_s_own_generator_is_left_in_its_place(tmp_path: Path) -> None:
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)
        store.prepare()
        store.close()
    assert [random.random() for _ in range(3)] == expected
