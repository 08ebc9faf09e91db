"""The same client calls against FakeGcs and against gcp-storage-emulator, an independent fake, give the same results.

Compared is what that package gets right: plain uploads, downloads, metadata, listings and deletes. It ignores
preconditions, so those are left out.
"""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gcp_storage_emulator.server import create_server
from google.api_core import exceptions

from keras_preempt.testing import FakeGcs
from tests.testing.conftest import client_at

CONTENTS = {
    "empty": b"",
    "small": b"hello",
    "a/1": random.Random(1).randbytes(1000),
    "a/2": b"\r\n\r\n--\r\n",
    "a/b/3": random.Random(2).randbytes(700_000),
    "with space+ü%2F": b"name",
}
BIG = random.Random(3).randbytes(9 << 20)


@pytest.fixture
def emulator() -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    client = client_at(f"http://127.0.0.1:{port}")
    yield client
    client.close()
    server.stop()


def described(blob: Any) -> tuple[Any, ...]:
    return (blob.name, blob.size, blob.crc32c, blob.content_type, blob.metadata)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of error that the client makes of it."""
    try:
        return call()
    except exceptions.GoogleAPICallError as error:
        return type(error).__name__


def uploads(bucket: Any) -> Iterator[Any]:
    for name, content in CONTENTS.items():
        blob = bucket.blob(name)
        blob.metadata = {"length": str(len(content))}
        blob.upload_from_string(content, content_type="application/x-test", checksum="crc32c")
        yield described(blob)
        yield described(bucket.get_blob(name))
    for name, size in (("known", len(BIG)), ("unknown", None)):
        blob = bucket.blob(name, chunk_size=1 << 20)
        blob.upload_from_file(io.BytesIO(BIG), size=size, checksum="crc32c")
        yield described(blob)
    bucket.blob("small").upload_from_string(b"replaced", checksum="crc32c")
    yield described(bucket.get_blob("small"))


def downloads(bucket: Any) -> Iterator[Any]:
    for name in CONTENTS:
        yield bucket.blob(name).download_as_bytes(checksum="crc32c")
    for name in ("known", "unknown"):
        yield bucket.blob(name).download_as_bytes(checksum="crc32c") == BIG
    for start, end in ((0, 9), (10, None), (5, 5), (990, 2000), (999, None)):
        yield bucket.blob("a/1").download_as_bytes(start=start, end=end)
    with bucket.blob("a/b/3", chunk_size=256 * 1024).open("rb") as file:
        yield file.read() == CONTENTS["a/b/3"]
    yield outcome(lambda: bucket.blob("missing").download_as_bytes())


def listings(bucket: Any) -> Iterator[Any]:
    for prefix in ("", "a", "a/", "a/b/", "none"):
        for delimiter in (None, "/"):
            listing = bucket.list_blobs(prefix=prefix, delimiter=delimiter)
            yield sorted(blob.name for blob in listing), sorted(listing.prefixes)


def changes(bucket: Any) -> Iterator[Any]:
    blob = bucket.get_blob("small")
    blob.metadata = {"k": "v"}
    blob.patch()
    yield described(bucket.get_blob("small"))
    yield outcome(lambda: bucket.blob("small").delete())
    yield outcome(lambda: bucket.blob("small").delete())
    yield bucket.get_blob("small")
    yield bucket.blob("small").exists()
    yield bucket.exists()
    wrong = bucket.blob("wrong")
    wrong.crc32c = "AAAAAA=="
    yield outcome(lambda: wrong.upload_from_string(b"content", checksum=None))
    yield outcome(lambda: bucket.client.bucket("nowhere").reload())
    yield sorted(blob.name for blob in bucket.list_blobs())


def test_both_fakes_give_the_same_results(gcs: FakeGcs, emulator: Any) -> None:
    compared = 0
    for part in (uploads, downloads, listings, changes):
        ours = list(part(gcs.client().bucket("bucket")))
        theirs = list(part(emulator.bucket("bucket")))
        assert ours == theirs, part.__name__
        compared += len(ours)
    assert compared > 40
