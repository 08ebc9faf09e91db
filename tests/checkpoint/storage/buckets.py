"""What the tests of a bucket have in common."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import numpy as np
from azure.storage.blob import BlobServiceClient

from keras_preempt.checkpoint.storage.azure import AzureBucketStore
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.s3 import S3BucketStore
from keras_preempt.checkpoint.storage.store import Buffer, Store
from keras_preempt.testing import FakeAzure, FakeGcs, FakeS3
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.testing.emulators import azurite_endpoint, moto_endpoint

LARGE = (17 << 20) + 12345  # bytes: three chunks of an upload, four ranges of a download
LONG = 9 << 20  # bytes: more than goes up or down in one request

FAKES: dict[str, type[FakeBucket]] = {"gs": FakeGcs, "s3": FakeS3, "az": FakeAzure}
"""The fakes by the scheme of their buckets."""


@contextlib.contextmanager
def fake_bucket(scheme: str, **options: Any) -> Iterator[Any]:
    """Runs the fake of a scheme, with a bucket named "bucket", to which the environment leads."""
    kind: Any = FAKES[scheme]
    with (
        kind(buckets=("bucket",), **options) as fake,
        mock.patch.dict(os.environ, fake.environment()),
    ):
        yield fake


@contextlib.contextmanager
def emulated_bucket(name: str) -> Iterator[str]:
    """Runs "moto" or "azurite" with a bucket to which the environment leads; yields the bucket's URL."""
    if name == "moto":
        with (
            moto_endpoint() as endpoint,
            mock.patch.dict(os.environ, {**_MOTO, "AWS_ENDPOINT_URL": endpoint}),
        ):
            client = boto3.client("s3", endpoint_url=endpoint)
            client.create_bucket(Bucket="bucket")
            client.close()
            yield "s3://bucket"
        return
    account, key = FakeAzure.account, FakeAzure.account_key
    with azurite_endpoint(account, key) as endpoint:
        variables = {"ACCOUNT_NAME": account, "ACCOUNT_KEY": key, "ENDPOINT": endpoint}
        named = {f"AZURE_STORAGE_{part}": value for part, value in variables.items()}
        with (
            mock.patch.dict(os.environ, named),
            BlobServiceClient(endpoint, credential=key, api_version="2025-11-05") as client,
        ):
            client.create_container("bucket")
            yield "az://bucket"


_MOTO = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_MOTO["AWS_DEFAULT_REGION"] = _MOTO["AWS_REGION"]


def scheme_of(fake: FakeBucket) -> str:
    return next(scheme for scheme, kind in FAKES.items() if isinstance(fake, kind))


def new_store(fake: FakeBucket, tmp_path: Path, place: str = "bucket/run", **options: int) -> BucketStore:
    """Returns a store in a fake; it has to be the one to which the environment leads, unless it is Google's."""
    url = f"{scheme_of(fake)}://{place}"
    if isinstance(fake, FakeGcs):
        return GcsStore(url, staging_dir=tmp_path, connect=fake.client, **options)
    kind = S3BucketStore if isinstance(fake, FakeS3) else AzureBucketStore
    return kind(url, staging_dir=tmp_path, **options)


def write(store: Store, name: str, *buffers: Buffer) -> None:
    with store.writer(name) as writer:
        for buffer in buffers:
            writer.write(buffer)


def large_content() -> bytes:
    return np.random.default_rng(1).bytes(LARGE)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.01)


CALLS: dict[str, Callable[[BucketStore], object]] = {
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


def put_what_calls_ask_for(fake: FakeBucket) -> None:
    for name, size in (("there", 1), ("doomed", 1), ("folder/there", 1), ("large", LONG)):
        fake.put("bucket", f"run/{name}", bytes(size))
