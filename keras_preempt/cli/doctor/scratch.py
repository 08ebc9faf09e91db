"""Where the doctor writes: beside the checkpoints of the directory, never among them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX, Store

__all__ = ["place", "removed_afterwards"]

_NAME = "doctor"


def place(directory: str, name: str) -> str:
    """Names a place for the doctor's own files that no job takes for its own.

    In a directory that is one of those that no listing shows, so that it may stand in an empty one and in that of a
    run. In a bucket it is beside the prefix: ``gs://bucket/run.doctor/...`` for ``gs://bucket/run``.

    Args:
        directory: What the callback is given.
        name: What to call it.
    """
    store = open_store(directory)
    if isinstance(store, LocalStore):
        return str(store.path / f"{TEMPORARY_PREFIX}{_NAME}" / name)
    bucket, _, prefix = store.key.removeprefix("gs://").partition("/")
    return f"gs://{bucket}/{f'{prefix}.{_NAME}' if prefix else _NAME}/{name}"


@contextlib.contextmanager
def removed_afterwards(url: str, staging_dir: str | None = None) -> Iterator[Store]:
    """Gives the store of such a place, and removes the place when the block ends."""
    store = open_store(url, staging_dir=staging_dir)
    try:
        yield store
    finally:
        remove(store)
        store.close()


def remove(store: Store) -> None:
    """Removes such a place, as far as that is permitted. Whether it is, is a check of its own."""
    store.deadline = None
    if isinstance(store, LocalStore):
        shutil.rmtree(store.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # Other workers' doctors are still there.
            Path(store.path).parent.rmdir()
        return
    with contextlib.suppress(CheckpointError):
        for name in store.children(""):
            store.delete_tree(name)
            with contextlib.suppress(CheckpointError):
                store.delete(name)
