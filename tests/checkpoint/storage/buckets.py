"""What the tests of a bucket have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.store import Buffer, Store
from keras_preempt.testing import FakeGcs

LARGE = (17 << 20) + 12345  # bytes: three chunks of an upload, four ranges of a download
LONG = 9 << 20  # bytes: more than goes up or down in one request


def new_store(gcs: FakeGcs, tmp_path: Path, **options: int) -> GcsStore:
    return GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client, **options)


def write(store: Store, name: str, *buffers: Buffer) -> None:
    with store.writer(name) as writer:
        for buffer in buffers:
            writer.write(buffer)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.01)


CALLS: dict[str, Callable[[GcsStore], object]] = {
    "create": lambda store: store.create("new", b"x"),
    "writer": lambda store: write(store, "new", b"x" * LONG),
    "read": lambda store: store.read("there", limit=9),
    "open": lambda store: store.open("large").close(),
    "stat": lambda store: store.stat("there"),
    "list": lambda store: store.list(""),
    "children": lambda store: store.children(""),
    "delete": lambda store: store.delete("doomed"),  # Its own: other calls are made at the same time.
    "delete_tree": lambda store: store.delete_tree("folder"),
    "prepare": lambda store: store.prepare(),
}


def put_what_calls_ask_for(gcs: FakeGcs) -> None:
    for name, size in (("there", 1), ("doomed", 1), ("folder/there", 1), ("large", LONG)):
        gcs.put("bucket", f"run/{name}", bytes(size))
