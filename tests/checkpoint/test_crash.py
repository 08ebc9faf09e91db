from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from unittest import mock

import pytest

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.reader import load, verify
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import model, retain, save, snapshot

# Two workers write in one process: the later hits are in the middle of the second one's part.
# One process exchanges nothing: tests/cluster/test_restoring_together.py kills in an exchange.
CUTS = [(name, hit) for name in failpoints.NAMES if name != "restore.in-exchange" for hit in (1, 2)]
ONCE = {"save.before-manifest", "save.after-manifest", "restore.before-read", "restore.after-read"}
AFTER_COMMIT = ("save.after-manifest", "restore.before-read", "restore.after-read")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work: Callable[[], object]) -> int | None:
    """Works in a forked process; returns its exit status, below zero the signal that has ended it."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    return child.exitcode


def good(store: LocalStore, step: int) -> bool:
    info = next(info for info in committed(store) if info.step == step)
    verify(store, info)
    return load(store, info, 1, 2).values.whole["seed"].tobytes() == model(step)["seed"].tobytes()


@pytest.mark.parametrize(("name", "hit"), [cut for cut in CUTS if cut[1] == 1 or cut[0] not in ONCE])
def test_a_kill_at_any_point_leaves_the_old_checkpoint_and_all_or_nothing_of_the_new(
    store: LocalStore, name: str, hit: int
) -> None:
    def save_and_load() -> None:
        passed = iter(range(1, 100))
        failpoints.set_hook(name, lambda: die() if next(passed) == hit else None)
        load(store, save(store, 5, round=2), 0, 2)

    old = save(store, 3)
    before = snapshot(store.path)
    assert in_a_child(save_and_load) == -signal.SIGKILL
    assert good(store, 3)
    assert before.items() <= snapshot(store.path).items()
    steps = [info.step for info in committed(store)]
    assert steps == ([5, 3] if name in AFTER_COMMIT else [3])
    if name in AFTER_COMMIT:
        assert good(store, 5)
    # The next start saves the same step again, in an attempt of its own, and clears the ruins away.
    new = save(store, 5, round=3)
    assert good(store, 5)
    retain(store, Retention(2), incarnation=2)
    kept = [info.directory for info in committed(store)]
    assert new.directory in kept
    assert len(kept) == 2
    assert (old.directory in kept) == (name not in AFTER_COMMIT)
    folders = {str(path.parent.relative_to(store.path)) for path in store.path.rglob("w*.safetensors")}
    assert folders == set(kept)


def test_a_kill_while_a_file_is_written_leaves_no_file_of_that_name(store: LocalStore) -> None:
    def write_half() -> None:
        with store.writer("a/b") as writer:
            writer.write(b"half")
            die()

    assert in_a_child(write_half) == -signal.SIGKILL
    assert [path.read_bytes() for path in (store.path / "a").iterdir()] == [b"half"]
    assert store.list("") == []
    store.create("a/b", b"whole")
    assert store.read("a/b", limit=9) == b"whole"


def test_a_failing_disk_at_any_point_of_a_save_leaves_no_half_checkpoint(store: LocalStore) -> None:
    for round, name in enumerate(failpoints.NAMES[:5], start=1):
        failpoints.set_hook(name, mock.Mock(side_effect=OSError("the disk fails")))
        try:
            with pytest.raises(OSError, match="the disk fails"):
                save(store, 5, round=round)
        finally:
            failpoints.clear_hook(name)
        assert committed(store) == []
    names = {path.name for path in store.path.rglob("*")}
    assert not [name for name in names if name.startswith(".tmp-") or name == MANIFEST]
