"""What another number of workers may change about a run, and what it reads from the checkpoints of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.reader import Reading
from keras_preempt.checkpoint.setup import SETUP, Setup, differences
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint import builders
from tests.checkpoint.sharded_builders import Counting

OLD = Setup(workers=2, replicas=2, global_batch=8, batches=6, built_from=1)
OTHERS = [
    replace(OLD, workers=1, replicas=1),
    replace(OLD, workers=3, replicas=3),
    replace(OLD, replicas=4),
    replace(OLD, global_batch=16),
]


@pytest.fixture
def saved(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> CheckpointInfo:
    plain = builders.state
    monkeypatch.setattr(builders, "state", lambda *given: {**plain(*given), SETUP: OLD.to_json()})
    return builders.save(store, 5)


@pytest.mark.parametrize("setup", [OLD, *OTHERS])
def test_another_setup_reads_every_part_and_the_same_its_own_part_only_and_no_file_twice(
    store: Counting, saved: CheckpointInfo, setup: Setup
) -> None:
    for member in range(setup.workers):
        store.opened.clear()
        loaded = Reading(store, saved).load(member, setup)
        assert set(store.opened.values()) == {1}
        assert {"w00000.part.json", "w00001.part.json"} <= store.opened.keys()
        np.testing.assert_array_equal(loaded.values.whole["dense/kernel"], builders.model(5)["dense/kernel"])
        assert bool(loaded.workers) == (setup != OLD)
        if not loaded.workers:
            assert loaded.state["member"] == member
            continue
        assert loaded.saved_on == OLD
        assert [own.member for own in loaded.workers] == [0, 1]
        for own in loaded.workers:
            assert own.state["member"] == own.member
            wanted = builders.local(5, own.member)["moving_mean"]
            np.testing.assert_array_equal(own.local["moving_mean"], wanted)


def test_a_damaged_part_of_another_worker_is_found_out(store: LocalStore, saved: CheckpointInfo) -> None:
    (file,) = (store.path / saved.directory).glob("w00001.local*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="w00001"):
        Reading(store, saved).load(0, OTHERS[0])
    assert Reading(store, saved).load(0, OLD).state["member"] == 0  # It needs that file no more than before.


def test_a_checkpoint_that_does_not_say_what_it_was_saved_on_is_for_as_many_workers(
    store: LocalStore,
) -> None:
    info = builders.save(store, 5)
    assert Reading(store, info).load(1, OLD).state["member"] == 1
    with pytest.raises(CheckpointError, match="Start 2 workers"):
        Reading(store, info).load(0, OTHERS[0])


def differ(old: Setup = OLD, **changes: Any) -> list[str]:
    return [name for name, _, _ in differences(old.to_json(), replace(old, **changes).to_json())]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"global_batch": 12, "batches": 4},
        {"global_batch": 10, "batches": 4},  # 48 samples, the last part of a batch dropped
        {"global_batch": 10, "batches": 5},  # or kept
        {"global_batch": 12},  # steps_per_epoch of endless data
        {"global_batch": None, "batches": 4},
        {"batches": None},
    ],
)
def test_other_workers_may_have_other_batches_of_the_same_samples(changes: dict[str, Any]) -> None:
    for workers in ({"workers": 3, "replicas": 3}, {"replicas": 4}, {"workers": 1}):
        assert differ(**workers, **changes) == []


def test_as_many_workers_train_on_the_same_batches_and_others_on_the_same_data() -> None:
    assert differ() == []
    assert differ(global_batch=16, batches=3) == ["global_batch", "batches"]
    assert differ(batches=5) == ["batches"]
    assert differ(workers=3, replicas=3, batches=60) == ["batches"]
    assert differ(workers=3, replicas=3, batches=8, global_batch=12) == ["global_batch", "batches"]
    assert differ(built_from=0, workers=1, replicas=1) == [], "how a strategy builds a model does not count"


def test_a_setup_is_read_back_as_it_was() -> None:
    for setup in (OLD, replace(OLD, global_batch=None, batches=None)):
        assert Setup.from_json(setup.to_json(), "file") == setup


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**OLD.to_json(), "workers": 0},
        {**OLD.to_json(), "workers": None},
        {**OLD.to_json(), "global_batch": -1},
        {**OLD.to_json(), "batches": "6"},
        {**OLD.to_json(), "built_from": 2},
        {**OLD.to_json(), "more": 1},
    ],
)
def test_anything_but_a_setup_is_refused(value: object) -> None:
    with pytest.raises(CorruptCheckpoint):
        Setup.from_json(value, "file")
