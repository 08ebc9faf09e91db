"""boto3, azure-storage-blob and obstore move, list and delete objects of the fakes."""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import boto3
import pytest
import requests
from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import BlobServiceClient
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, S3Store

from keras_preempt.testing import FakeAzure, FakeS3
from tests.testing.buckets.conftest import store_of
from tests.testing.emulators import azurite_endpoint

BIG = random.Random(1).randbytes((17 << 20) + 5)
NAMES = ["plain", "a/b/c", "sp ace ü ☃ ?#&%25+", "k" * 1000]


def test_boto3_uploads_and_downloads_files_in_parts(tmp_path):
    (tmp_path / "big").write_bytes(BIG)
    parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
    with FakeS3() as s3:
        client = s3.client()
        client.upload_file(str(tmp_path / "big"), "bucket", "big", Config=parts)
        assert s3.content("bucket", "big") == BIG
        assert [request.method for request in s3.requests].count("PUT") == 4
        client.download_file("bucket", "big", str(tmp_path / "again"), Config=parts)
        assert (tmp_path / "again").read_bytes() == BIG
        assert client.get_object(Bucket="bucket", Key="big")["ETag"].endswith('-4"')


def test_boto3_does_what_there_is_to_do_with_objects():
    with FakeS3() as s3:
        client = s3.client()
        for name in NAMES:
            answer = client.put_object(
                Bucket="bucket", Key=name, Body=b"hello", IfNoneMatch="*", Metadata={"token": "7"}
            )
            assert answer["ChecksumCRC32"]
            got = client.get_object(Bucket="bucket", Key=name, Range="bytes=1-2")
            assert (got["Body"].read(), got["Metadata"]) == (b"el", {"token": "7"})
        with pytest.raises(ClientError) as refused:
            client.put_object(Bucket="bucket", Key=NAMES[0], Body=b"x", IfNoneMatch="*")
        assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", PaginationConfig={"PageSize": 1}
        )
        assert [entry["Key"] for page in pages for entry in page["Contents"]] == sorted(NAMES)
        client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": name} for name in NAMES]})
        assert s3.objects("bucket") == {}


def test_a_presigned_url_reads_until_it_expires():
    with FakeS3() as s3:
        s3.put("bucket", "a", b"hello")
        make = s3.client(config=Config(signature_version="s3v4")).generate_presigned_url
        url = make("get_object", {"Bucket": "bucket", "Key": "a"}, ExpiresIn=60)
        assert requests.get(url, timeout=10).content == b"hello"
        assert requests.get(url.replace("/a?", "/b?"), timeout=10).status_code == 403
        over = re.sub(r"X-Amz-Date=\d{4}", "X-Amz-Date=2020", url)
        assert "<Message>Request has expired</Message>" in requests.get(over, timeout=10).text


def test_azure_storage_blob_uploads_and_downloads_in_blocks():
    with FakeAzure() as azure:
        options = {"max_single_put_size": 1 << 20, "max_block_size": 4 << 20, "max_chunk_get_size": 4 << 20}
        container = azure.client(**options).get_container_client("bucket")
        container.upload_blob("big", BIG, max_concurrency=4)
        assert azure.content("bucket", "big") == BIG
        assert len([request for request in azure.requests if "comp=block&" in request.path]) == 5
        assert container.download_blob("big", max_concurrency=4).readall() == BIG
        container.upload_blob("empty", b"")
        assert container.download_blob("empty").readall() == b""


def test_azure_storage_blob_does_what_there_is_to_do_with_blobs():
    with FakeAzure() as azure:
        container = azure.client().get_container_client("bucket")
        for name in NAMES:
            container.upload_blob(name, b"hello", metadata={"token": "7"}, validate_content=True)
            got = container.download_blob(name, offset=1, length=2)
            assert (got.readall(), got.properties.metadata) == (b"el", {"token": "7"})
        with pytest.raises(ResourceExistsError, match="BlobAlreadyExists"):
            container.upload_blob(NAMES[0], b"x")
        assert [blob.name for blob in container.list_blobs(results_per_page=1)] == sorted(NAMES)
        assert {blob.metadata["token"] for blob in container.list_blobs(include=["metadata"])} == {"7"}
        container.delete_blobs(*NAMES)
        assert azure.objects("bucket") == {}


@pytest.fixture(params=["fake", pytest.param("Azurite", marks=pytest.mark.chaos)])
def azure_endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "fake":
        with FakeAzure(buckets=()) as fake:
            yield fake.endpoint
    else:
        with azurite_endpoint(FakeAzure.account, FakeAzure.account_key) as endpoint:
            yield endpoint


def test_azure_says_what_was_wrong_in_the_status_line_also_in_a_batch(azure_endpoint):
    missing, changed = (
        "The specified blob does not exist.",
        "The condition specified using HTTP conditional header(s) is not met.",
    )
    with BlobServiceClient(azure_endpoint, FakeAzure.account_key, api_version="2025-11-05") as client:
        container = client.create_container("bucket")
        container.upload_blob("there", b"")
        container.upload_blob("changed", b"")
        with pytest.raises(ResourceNotFoundError) as caught:
            container.download_blob("missing")
        assert caught.value.reason == missing
        replaced = {"name": "changed", "etag": '"x"', "match_condition": MatchConditions.IfNotModified}
        answers = container.delete_blobs("there", "missing", replaced, raise_on_any_failure=False)
        told = [(answer.status_code, answer.reason) for answer in answers]
    assert told == [(202, "Accepted"), (404, missing), (412, changed)]


def test_obstore_does_what_there_is_to_do(fake, store):
    for name in NAMES:
        store.put(name, b"hello", mode="create", attributes={"token": "7"})
        got = store.get(name)
        assert (bytes(got.bytes()), got.attributes["token"], got.meta["size"]) == (b"hello", "7", 5)
        assert bytes(store.get_range(name, start=1, length=2)) == b"el"
        with pytest.raises(AlreadyExistsError):
            store.put(name, b"x", mode="create")
    assert sorted(meta["path"] for meta in store.list().collect()) == sorted(NAMES)
    assert store.list_with_delimiter("a")["common_prefixes"] == ["a/b"]
    store.put("big", io.BytesIO(BIG))
    assert fake.content("bucket", "big") == BIG
    store.delete([*NAMES, "big"])
    assert fake.objects("bucket") == {}
    with pytest.raises(FileNotFoundError):
        store.head("big")


def test_more_objects_than_a_page_has_are_listed_and_deleted(fake, store):
    names = [f"n/{number:05}" for number in range(5003)]
    for name in names:
        fake.put("bucket", name, b"")
    found = [meta["path"] for meta in store.list("n").collect()]
    assert found == names
    pages = {FakeS3: 6, FakeAzure: 2}[type(fake)]
    assert len(fake.requests) == pages
    store.delete(found)
    assert fake.objects("bucket") == {}


def test_of_racing_creations_exactly_one_wins(fake):
    barrier = Barrier(10)

    def create(name, number):
        barrier.wait(10)
        try:
            store_of(fake).put(name, str(number).encode(), mode="create")
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(10) as pool:
        for turn in range(5):
            name = f"race{turn}"
            winners = set(pool.map(create, [name] * 10, range(10))) - {None}
            assert {fake.content("bucket", name)} == {str(winner).encode() for winner in winners}


def test_a_child_process_finds_the_fake_by_its_environment(fake, monkeypatch):
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    if isinstance(fake, FakeS3):
        boto3.client("s3").put_object(Bucket="bucket", Key="a", Body=b"hello")
    else:
        where = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
        with BlobServiceClient.from_connection_string(where) as client:
            client.get_blob_client("bucket", "a").upload_blob(b"hello")
    found = S3Store("bucket") if isinstance(fake, FakeS3) else AzureStore("bucket")
    assert bytes(found.get("a").bytes()) == b"hello"
