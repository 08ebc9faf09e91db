"""Workers of another number read what all who saved a checkpoint had of their own, verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.other_workers import SETUP, LoadedFromOthers, Setup, load_for
from keras_preempt.checkpoint.reader import CheckpointInfo
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint import builders

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

    def state(step: int, member: int) -> dict[str, Any]:
        return {**plain(step, member), SETUP: OLD.to_json()}

    monkeypatch.setattr(builders, "state", state)
    return builders.save(store, 5)


@pytest.mark.parametrize("member", [0, 1])
def test_the_same_setup_reads_its_own_part_only(
    store: LocalStore, saved: CheckpointInfo, member: int
) -> None:
    loaded = load_for(store, saved, member, OLD)
    assert not isinstance(loaded, LoadedFromOthers)
    assert loaded.state["member"] == member


@pytest.mark.parametrize("setup", OTHERS)
def test_another_setup_reads_every_part(store: LocalStore, saved: CheckpointInfo, setup: Setup) -> None:
    for member in range(setup.workers):
        loaded = load_for(store, saved, member, setup)
        assert isinstance(loaded, LoadedFromOthers)
        assert loaded.setup == OLD
        assert [own.member for own in loaded.workers] == [0, 1]
        for own in loaded.workers:
            assert own.state["member"] == own.member
            np.testing.assert_array_equal(
                own.local["moving_mean"], builders.local(5, own.member)["moving_mean"]
            )
        np.testing.assert_array_equal(loaded.tensors["dense/kernel"], builders.model(5)["dense/kernel"])


@pytest.mark.parametrize("setup", [OLD, *OTHERS])
def test_no_file_is_read_twice(
    store: LocalStore, saved: CheckpointInfo, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = store.open

    def counted(name: str, *more: Any) -> Any:
        opened.append(name)
        return real(name, *more)

    monkeypatch.setattr(store, "open", counted)
    load_for(store, saved, 1, setup)
    assert sorted(set(opened)) == sorted(opened)
    assert {name for name in opened if name.endswith(".part.json")} == {
        f"{saved.directory}/w0000{member}.part.json" for member in (0, 1)
    }


def test_a_damaged_part_of_another_worker_is_found_out(store: LocalStore, saved: CheckpointInfo) -> None:
    (file,) = (store.path / saved.directory).glob("w00001.local*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="w00001"):
        load_for(store, saved, 0, OTHERS[0])
    assert load_for(store, saved, 0, OLD).state["member"] == 0  # It needs that file no more than before.


def test_a_checkpoint_that_does_not_say_what_it_was_saved_on_is_for_as_many_workers(
    store: LocalStore,
) -> None:
    info = builders.save(store, 5)
    assert load_for(store, info, 1, OLD).state["member"] == 1
    with pytest.raises(CheckpointError, match="Start 2 workers"):
        load_for(store, info, 0, OTHERS[0])
