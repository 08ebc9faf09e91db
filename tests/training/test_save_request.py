"""The request for a save: one at a time, for one start of the job, and nothing of others is taken for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training.save import requests
from tests.checkpoint.builders import new_store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)


def test_a_request_is_joined_while_it_stands_and_makes_way_in_the_next_start(store: LocalStore) -> None:
    assert requests.pending_request(store) is None
    made, own = requests.make_request(store, 3, "here")
    assert own
    assert (made.incarnation, made.asked_from) == (3, "here")
    assert requests.make_request(store, 3, "there") == (made, False)
    assert requests.pending_request(store) == made
    new, own = requests.make_request(store, 4, "here")
    assert own
    assert requests.pending_request(store) == new != made


def test_only_the_request_that_is_meant_is_removed(store: LocalStore) -> None:
    made, _ = requests.make_request(store, 3, "here")
    assert not requests.remove_request(store, replace(made, id="another"))
    assert requests.remove_request(store, made)
    assert not requests.remove_request(store, made)
    assert requests.pending_request(store) is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptCheckpoint),
        (b"buy milk", CorruptCheckpoint),
        (documents.encode_document({"format": 1}), CorruptCheckpoint),
        (
            documents.encode_document(
                {"format": 1, "id": 7, "incarnation": 1, "asked_at": 0, "asked_from": ""}
            ),
            CorruptCheckpoint,
        ),
        (documents.encode_document({"format": documents.FORMAT + 1}), UnsupportedFormat),
    ],
    ids=["empty", "text", "another document", "a number for a text", "a newer format"],
)
def test_a_foreign_file_of_that_name_is_no_request_and_stays(
    data: bytes, error: type[Exception], store: LocalStore
) -> None:
    (store.path / SAVE_REQUEST).write_bytes(data)
    with pytest.raises(error):
        requests.pending_request(store)
    with pytest.raises(error):
        requests.make_request(store, 1, "here")
    assert (store.path / SAVE_REQUEST).read_bytes() == data
