from __future__ import annotations

import errno
import os
import re
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import posix_files
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import refuse_links, snapshot


def test_a_lock_of_a_dead_process_is_waited_for_only_so_long(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    monkeypatch.setattr(posix_files, "_LOCK_TIMEOUT", 0.05)
    lock = store.path / ".tmp-lock-a"
    lock.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match=re.escape(str(lock))):
        store.create("a", b"x")
    assert snapshot(store.path) == {".tmp-lock-a": b""}


def test_a_link_whose_answer_was_lost_counts_as_made(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "retried by NFS")

    monkeypatch.setattr(os, "link", link)
    store.create("a", b"x")
    assert snapshot(store.path) == {"a": b"x"}
