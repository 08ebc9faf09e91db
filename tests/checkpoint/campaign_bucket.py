"""A bucket with a bad network as the place of a schedule."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs, Faults

KINDS = ("429", "503", "corrupted", "corrupted-upload", "lost-response", "reset", "truncated")


class Bucket:
    """The same in a bucket; every worker has a client, connections and a staging directory of its own."""

    def __init__(self, gcs: FakeGcs, staging: Path) -> None:
        self._gcs, self._staging = gcs, staging
        self.stores: list[GcsStore] = []

    def store(self) -> GcsStore:
        made = GcsStore("gs://bucket/run", staging_dir=self._staging, connect=self._gcs.client)
        self.stores.append(made)
        return made

    def read(self, name: str) -> bytes | None:
        try:
            return self._gcs.content("bucket", f"run/{name}")
        except KeyError:
            return None

    def names(self) -> list[str]:
        return [name.removeprefix("run/") for name in self._gcs.objects("bucket")]


@contextlib.contextmanager
def bucket(seed: int) -> Iterator[Bucket]:
    """A fresh bucket; one request in twelve meets a fault."""
    faults = Faults(seed=seed, rate=0.08, kinds=KINDS, retry_after=0)
    with FakeGcs(buckets=("bucket",), faults=faults) as gcs, tempfile.TemporaryDirectory() as staging:
        place = Bucket(gcs, Path(staging))
        try:
            yield place
        finally:
            for store in place.stores:
                store.close()
