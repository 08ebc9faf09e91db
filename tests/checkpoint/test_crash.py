from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.reader import committed, load, verify
from keras_preempt.checkpoint.retention import Retention, retain
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint import crash_child
from tests.checkpoint.builders import model, save, snapshot

# Two workers write in one process: the later hits are in the middle of the second one's part.
# One process exchanges nothing: tests/cluster/test_restoring_together.py kills in an exchange.
CUTS = [(name, hit) for name in failpoints.NAMES if name != "restore.in-exchange" for hit in (1, 2)]
ONCE = {"save.before-manifest", "save.after-manifest", "restore.before-read", "restore.after-read"}
AFTER_COMMIT = ("save.after-manifest", "restore.before-read", "restore.after-read")


def run_child(store: LocalStore, step: int, round: int, failpoint: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, crash_child.__file__, str(store.path), str(step), str(round)],
        env={**os.environ, failpoints.VARIABLE: failpoint},
        capture_output=True,
        text=True,
        timeout=120,
    )


def good(store: LocalStore, step: int) -> bool:
    info = next(info for info in committed(store) if info.step == step)
    verify(store, info)
    return load(store, info, 1, 2).tensors["seed"].tobytes() == model(step)["seed"].tobytes()


@pytest.mark.parametrize(("name", "hit"), [cut for cut in CUTS if cut[1] == 1 or cut[0] not in ONCE])
def test_a_kill_at_any_point_leaves_the_old_checkpoint_and_all_or_nothing_of_the_new(
    store: LocalStore, name: str, hit: int
) -> None:
    old = save(store, 3)
    before = snapshot(store.path)
    child = run_child(store, 5, 2, f"{name}=kill:{hit}")
    assert child.returncode == -signal.SIGKILL, child.stderr
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
    folders = {str(path.parent.relative_to(store.path)) for path in Path(store.path).rglob("w*.safetensors")}
    assert folders == set(kept)


def test_a_kill_while_a_file_is_written_leaves_no_file_of_that_name(store: LocalStore) -> None:
    program = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.checkpoint.crash_child import LocalStore
with LocalStore(sys.argv[2]).writer("a/b") as writer:
    writer.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    child = subprocess.run(
        [sys.executable, "-c", program, str(crash_child.ROOT), str(store.path)], timeout=120
    )
    assert child.returncode == -signal.SIGKILL
    assert [path.read_bytes() for path in (store.path / "a").iterdir()] == [b"half"]
    assert store.list("") == []
    store.create("a/b", b"whole")
    assert store.read("a/b", limit=9) == b"whole"


def test_an_uncut_child_commits_and_needs_no_tensorflow(store: LocalStore) -> None:
    child = run_child(store, 5, 1, "save.before-parts=kill:99")
    assert child.returncode == 0, child.stderr
    assert good(store, 5)


def test_a_failing_disk_at_any_point_of_a_save_leaves_no_half_checkpoint(store: LocalStore) -> None:
    for round, name in enumerate(failpoints.NAMES[:5], start=1):
        child = run_child(store, 5, round, f"{name}=raise")
        assert child.returncode == 1
        assert f"failpoint {name}" in child.stderr
        assert committed(store) == []
    assert not [
        path for path in store.path.rglob("*") if path.name.startswith(".tmp-") or path.name == MANIFEST
    ]
