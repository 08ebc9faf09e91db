"""A bucket with a bad network as the place of a schedule."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.testing import Faults
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import fake_bucket, new_store

KINDS = ("429", "503", "corrupted", "corrupted-upload", "lost-response", "reset", "truncated")

KINDS_OF = {
    "gs": KINDS,
    "s3": (*KINDS, "409", "412", "500"),
    # Azure does not look at the bytes of an upload: HTTPS guards them, which the fake does not speak.
    "az": (*(kind for kind in KINDS if kind != "corrupted-upload"), "409", "412", "500"),
}
"""What a network and a service do, by the scheme of the bucket."""


class Bucket:
    """The same in a bucket; every worker has a client, connections and a staging directory of its own."""

    def __init__(self, fake: FakeBucket, staging: Path) -> None:
        self._fake, self._staging = fake, staging
        self.stores: list[BucketStore] = []

    def store(self) -> BucketStore:
        made = new_store(self._fake, self._staging)
        self.stores.append(made)
        return made

    def read(self, name: str) -> bytes | None:
        try:
            return self._fake.content("bucket", f"run/{name}")
        except KeyError:
            return None

    def names(self) -> list[str]:
        return [name.removeprefix("run/") for name in self._fake.objects("bucket")]


class Emulator:
    """The same in a bucket of an emulator that others wrote, looked at through one more store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looking = open_store(url)
        self.stores = [self._looking]

    def store(self) -> Store:
        made = open_store(self._url)
        self.stores.append(made)
        return made

    def read(self, name: str) -> bytes | None:
        try:
            return self._looking.read(name, limit=1 << 30)
        except NotFound:
            return None

    def names(self) -> list[str]:
        return [info.name for info in self._looking.list("")]


@contextlib.contextmanager
def emulator(seed: int, url: str) -> Iterator[Emulator]:
    """A fresh prefix of a bucket; nothing goes wrong but what the schedule orders."""
    place = Emulator(f"{url}/{secrets.token_hex(8)}-{seed}")
    try:
        yield place
    finally:
        for store in place.stores:
            store.close()


@contextlib.contextmanager
def bucket(seed: int, scheme: str = "gs") -> Iterator[Bucket]:
    """A fresh bucket; one request in twelve meets a fault."""
    faults = Faults(seed=seed, rate=0.08, kinds=KINDS_OF[scheme], retry_after=0)
    with fake_bucket(scheme, faults=faults) as fake, tempfile.TemporaryDirectory() as staging:
        place = Bucket(fake, Path(staging))
        try:
            yield place
        finally:
            for store in place.stores:
                store.close()
