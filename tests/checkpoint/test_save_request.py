"""The request for a save: one at a time, for one start of the job, and nothing of others is taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_preempt.checkpoint import documents, save_request
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.local import LocalStore


def test_a_request_is_joined_while_it_stands_and_makes_way_in_the_next_start(store: LocalStore) -> None:
    assert save_request.read(store) is None
    made, own = save_request.make(store, 3, "here")
    assert own
    assert (made.incarnation, made.asked_from) == (3, "here")
    assert save_request.make(store, 3, "there") == (made, False)
    assert save_request.read(store) == made
    new, own = save_request.make(store, 4, "here")
    assert own
    assert save_request.read(store) == new != made


def test_only_the_request_that_is_meant_is_removed(store: LocalStore) -> None:
    made, _ = save_request.make(store, 3, "here")
    assert not save_request.remove(store, replace(made, id="another"))
    assert save_request.remove(store, made)
    assert not save_request.remove(store, made)
    assert save_request.read(store) is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptCheckpoint),
        (b"buy milk", CorruptCheckpoint),
        (documents.encode({"format": 1}), CorruptCheckpoint),
        (
            documents.encode({"format": 1, "id": 7, "incarnation": 1, "asked_at": 0, "asked_from": ""}),
            CorruptCheckpoint,
        ),
        (documents.encode({"format": documents.FORMAT + 1}), UnsupportedFormat),
    ],
    ids=["empty", "text", "another document", "a number for a text", "a newer format"],
)
def test_a_foreign_file_of_that_name_is_no_request_and_stays(
    data: bytes, error: type[Exception], store: LocalStore
) -> None:
    (store.path / SAVE_REQUEST).write_bytes(data)
    with pytest.raises(error):
        save_request.read(store)
    with pytest.raises(error):
        save_request.make(store, 1, "here")
    assert (store.path / SAVE_REQUEST).read_bytes() == data
