from __future__ import annotations

from unittest import mock

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import AlreadyExists, CorruptCheckpoint, NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore


def test_every_start_gets_the_next_number(store: LocalStore) -> None:
    assert incarnations.latest(store) == 0
    assert [incarnations.claim(store, {"host": "a"}) for _ in range(3)] == [1, 2, 3]
    assert incarnations.latest(store) == 3
    claim = incarnations.read_claim(store, 2)
    assert (claim["host"], claim["incarnation"]) == ("a", 2)
    assert claim["token"] != incarnations.read_claim(store, 3)["token"]
    with pytest.raises(NotFound):
        incarnations.read_claim(store, 4)


def test_claiming_gives_up_when_other_starts_are_always_faster(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "create", mock.Mock(side_effect=AlreadyExists("a claim", store.url)))
    with pytest.raises(StoreUnavailable, match="claims by others"):
        incarnations.claim(store, {})


def test_a_changed_claim_is_noticed(store: LocalStore) -> None:
    incarnations.claim(store, {})
    path = store.path / "incarnations/00001.json"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptCheckpoint):
        incarnations.read_claim(store, 1)
