"""Generations, preconditions, checksums and ranges, as the google-cloud-storage client meets them."""

from __future__ import annotations

import base64
import gzip
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
import requests
from google.api_core import exceptions
from google.cloud.exceptions import NotFound


def upload(bucket, name, content=b"content", **conditions):
    blob = bucket.blob(name)
    blob.upload_from_string(content, checksum="crc32c", retry=None, **conditions)
    return blob


#: As between the parts of an upload.
BOUNDARY = b"\r\n--===============0==\r\n\r\n--\r\n\r\n" * 3 + b"\r\n--"


@pytest.mark.parametrize("name", ["plain", "a/b/c", "sp ace ü ☃ ?#&%25+", "a//b", "x" * 1024])
def test_an_object_comes_back_whole_under_any_name(gcs, bucket, name):
    blob, size = bucket.blob(name), len(BOUNDARY)
    blob.metadata = {"token": "7"}
    blob.upload_from_string(BOUNDARY, content_type="text/plain", checksum="crc32c", if_generation_match=0)
    again = bucket.get_blob(name)
    crc32c = base64.b64encode(google_crc32c.value(BOUNDARY).to_bytes(4, "big")).decode()
    assert (again.name, again.size, again.crc32c) == (name, size, crc32c)
    assert (again.metadata, again.content_type) == ({"token": "7"}, "text/plain")
    assert (again.generation, again.metageneration) == (blob.generation, 1)
    assert again.download_as_bytes(checksum="crc32c") == BOUNDARY
    assert gcs.objects("bucket") == {name: (blob.generation, size, crc32c, {"token": "7"})}
    assert gcs.content("bucket", name) == BOUNDARY


def test_generations_rise_over_replacement_and_deletion(bucket):
    seen = []
    for _ in range(3):
        seen.append(upload(bucket, "a").generation)
        seen.append(upload(bucket, "a").generation)
        bucket.blob("a").delete()
    assert seen == sorted(set(seen))


def test_a_write_pinned_to_a_generation_or_to_none_replaces_no_other(gcs, bucket):
    first = upload(bucket, "a", b"first", if_generation_match=0).generation
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket, "a", b"second", if_generation_match=0)
    assert gcs.content("bucket", "a") == b"first"
    second = upload(bucket, "a", b"second", if_generation_match=first).generation
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket, "a", b"third", if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket, "a", b"third", if_generation_not_match=second)
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket, "missing", if_generation_not_match=0)
    assert gcs.content("bucket", "a") == b"second"
    bucket.blob("a").delete()
    upload(bucket, "a", b"third", if_generation_match=0)
    assert gcs.content("bucket", "a") == b"third"


def test_reads_honour_generations_and_preconditions(bucket):
    blob = upload(bucket, "a")
    live = blob.generation
    assert bucket.blob("a", generation=live).download_as_bytes(if_generation_match=live) == b"content"
    for name, generation in (("a", live - 1), ("a", live + 1), ("missing", None)):
        with pytest.raises(NotFound):
            bucket.blob(name, generation=generation).download_as_bytes()
        assert bucket.get_blob(name, generation=generation) is None
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").download_as_bytes(if_generation_match=live - 1)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").reload(if_metageneration_match=2)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("a").reload(if_generation_not_match=live)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("a").download_as_bytes(if_metageneration_not_match=1)


def test_a_delete_pinned_to_a_generation_spares_any_other(gcs, bucket):
    first = upload(bucket, "a").generation
    second = upload(bucket, "a").generation
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").delete(if_generation_match=first)
    with pytest.raises(NotFound):
        bucket.blob("a", generation=first).delete()
    assert gcs.objects("bucket")["a"].generation == second
    bucket.blob("a").delete(if_generation_match=second)
    assert gcs.objects("bucket") == {}
    with pytest.raises(NotFound):
        bucket.blob("a").delete(if_generation_match=second)


def test_of_racing_conditional_writes_exactly_one_wins(gcs):
    barrier = threading.Barrier(10)

    def write(bucket, name, number):
        barrier.wait(10)
        try:
            upload(bucket, name, str(number).encode(), if_generation_match=0)
        except exceptions.PreconditionFailed:
            return None
        return number

    buckets = [gcs.client().bucket("bucket") for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        for turn in range(5):
            name = f"race{turn}"
            winners = set(pool.map(write, buckets, [name] * 10, range(10))) - {None}
            assert {gcs.content("bucket", name)} == {str(winner).encode() for winner in winners}


def test_a_changed_resource_has_a_new_metageneration_and_the_same_generation(bucket):
    blob = upload(bucket, "a")
    generation = blob.generation
    blob.metadata = {"k": "v", "gone": "1"}
    blob.patch(if_metageneration_match=1)
    blob.metadata = {"gone": None}
    blob.patch()
    again = bucket.get_blob("a")
    assert (again.generation, again.metageneration, again.metadata) == (generation, 3, {"k": "v"})
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("kind", ["crc32c", "md5_hash"])
def test_an_upload_with_the_wrong_checksum_is_refused(gcs, bucket, kind, resumable):
    blob = bucket.blob("a", chunk_size=256 * 1024 if resumable else None)
    setattr(blob, kind, "AAAAAA==" if kind == "crc32c" else base64.b64encode(bytes(16)).decode())
    with pytest.raises(exceptions.BadRequest, match="doesn't match calculated"):
        blob.upload_from_file(io.BytesIO(b"content"), checksum=None, retry=None)
    assert gcs.objects("bucket") == {}


def test_md5_is_known_of_objects_whose_writer_sent_it(bucket):
    blob = bucket.blob("a")
    blob.upload_from_string(b"content", checksum="md5")
    assert bucket.get_blob("a").download_as_bytes(checksum="md5") == b"content"
    assert bucket.get_blob("a").md5_hash == blob.md5_hash is not None


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 3, b"0123"), (5, None, b"56789"), (8, 100, b"89"), (9, 9, b"9"), (-3, None, b"789")],
)
def test_a_range_is_exactly_that_and_none_lies_beyond_the_end(gcs, bucket, start, end, expected):
    upload(bucket, "a", b"0123456789")
    assert bucket.blob("a").download_as_bytes(start=start, end=end) == expected
    assert [r.status for r in gcs.requests if r.path.startswith("/download")] == [206]
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        bucket.blob("a").download_as_bytes(start=10)


def test_a_missing_bucket_is_told_from_a_missing_object(gcs):
    missing = gcs.client().bucket("missing")
    for call in (
        lambda: upload(missing, "a"),
        lambda: missing.blob("a").delete(),
        lambda: list(missing.list_blobs()),
        lambda: missing.reload(),
    ):
        with pytest.raises(NotFound, match="bucket does not exist"):
            call()
    with pytest.raises(NotFound, match="No such object"):
        gcs.client().bucket("bucket").blob("a").delete()
    with pytest.raises(KeyError, match="Expected a bucket"):
        gcs.objects("missing")


def test_buckets_are_made_and_removed(gcs):
    client = gcs.client()
    client.create_bucket("second")
    with pytest.raises(exceptions.Conflict):
        client.create_bucket("second")
    upload(client.bucket("second"), "a")
    with pytest.raises(exceptions.Conflict):
        client.bucket("second").delete()
    client.bucket("second").blob("a").delete()
    client.bucket("second").delete()
    assert not client.bucket("second").exists()
    assert client.get_bucket("bucket").location == "US"


def test_what_is_not_imitated_is_refused_and_noted_and_harms_no_connection(gcs, bucket):
    upload(bucket, "a")
    for call in (
        lambda: bucket.blob("c").compose([bucket.blob("a")]),
        lambda: list(bucket.list_blobs(versions=True, retry=None)),
        lambda: list(bucket.list_blobs(match_glob="*", retry=None)),
    ):
        with pytest.raises(exceptions.MethodNotImplemented, match="does not imitate"):
            call()
    for method in ("HEAD", "OPTIONS"):
        answer = requests.request(method, f"{gcs.endpoint}/storage/v1/b/bucket/o/a", timeout=10)
        assert answer.status_code == 501
        assert (gcs.requests[-1].method, gcs.requests[-1].status) == (method, 501)
    assert b"does not imitate" in answer.content
    with requests.Session() as session:
        session.head(f"{gcs.endpoint}/storage/v1/b/bucket/o/a", timeout=10)
        assert session.get(f"{gcs.endpoint}/storage/v1/b/bucket/o/a", timeout=10).json()["size"] == "7"


def test_a_copy_is_an_object_of_its_own_with_what_its_source_had(gcs, bucket):
    source = bucket.blob("a")
    source.metadata = {"token": "7"}
    source.upload_from_string(b"content", content_type="text/plain")
    copy = bucket.copy_blob(source, bucket, "folder/b", if_generation_match=0)
    assert (copy.name, copy.size) == ("folder/b", 7)
    assert (copy.content_type, copy.metadata) == ("text/plain", {"token": "7"})
    assert copy.generation > source.generation
    assert gcs.content("bucket", "folder/b") == b"content"
    assert [request.path for request in gcs.requests if "/copyTo/" in request.path]
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(source, bucket, "folder/b", if_generation_match=0)
    with pytest.raises(NotFound):
        bucket.copy_blob(bucket.blob("missing"), bucket, "c")


@pytest.mark.parametrize("way", ["copy", "rewrite"])
def test_a_copy_keeps_the_preconditions_on_its_source(gcs, bucket, way):
    source = upload(bucket, "a")
    there = gcs.client().create_bucket("there")

    def copy(**conditions):
        if way == "copy":
            return bucket.copy_blob(source, there, "é", retry=None, **conditions)
        return there.blob("é").rewrite(source, retry=None, **conditions)

    live = source.generation
    for wrong in (
        {"if_source_generation_match": live - 1},
        {"if_source_generation_not_match": live},
        {"if_source_metageneration_match": 2},
        {"if_source_metageneration_not_match": 1},
    ):
        with pytest.raises(exceptions.PreconditionFailed):
            copy(**wrong)
    assert gcs.objects("there") == {}
    copied = copy(if_source_generation_match=live, if_source_metageneration_match=1)
    assert way == "copy" or copied == (None, 7, 7)
    assert gcs.content("there", "é") == b"content"


def zipped(bucket, **fields):
    blob = bucket.blob("a")
    blob.content_encoding = "gzip"
    for field, value in fields.items():
        setattr(blob, field, value)
    blob.upload_from_string(gzip.compress(b"content" * 1000), content_type="text/plain", checksum="crc32c")
    return blob


def media(gcs, accepted, **headers):
    """Downloads the object as a client that accepts some encodings."""
    place = f"{gcs.endpoint}/download/storage/v1/b/bucket/o/a?alt=media"
    return requests.get(place, headers={"Accept-Encoding": accepted, **headers}, stream=True, timeout=10)


def test_a_compressed_object_comes_whole_packed_or_not_as_is_asked(gcs, bucket):
    blob = zipped(bucket)
    assert (blob.size, blob.content_encoding) == (len(gcs.content("bucket", "a")), "gzip")
    assert blob.download_as_bytes(checksum="crc32c") == b"content" * 1000
    raw = blob.download_as_bytes(raw_download=True, checksum="crc32c")
    assert gzip.decompress(raw) == b"content" * 1000
    for accepted in ("identity", "deflate, gzip;q=0"):
        answer = media(gcs, accepted, Range="bytes=2-5")
        assert (answer.status_code, answer.content) == (200, b"content" * 1000)
        assert "Content-Encoding" not in answer.headers
        assert "gunzipped" in answer.headers["Warning"]
        assert answer.headers["x-goog-stored-content-encoding"] == "gzip"
    packed = media(gcs, "gzip", Range="bytes=0-1")
    assert (packed.status_code, packed.raw.read(decode_content=False)) == (206, b"\x1f\x8b")


def test_what_must_not_be_transformed_or_is_not_compressed_is_answered_as_it_is(gcs, bucket):
    zipped(bucket, cache_control="no-transform")
    stored = gcs.content("bucket", "a")
    assert media(gcs, "identity").raw.read(decode_content=False) == stored
    blob = bucket.blob("a")
    blob.content_encoding = "gzip"
    blob.upload_from_string(b"plain")
    assert media(gcs, "identity").content == b"plain"


def test_things_can_change_behind_the_client(gcs, bucket):
    generation = gcs.put("bucket", "a", b"theirs")
    assert bucket.get_blob("a").generation == generation
    gcs.remove("bucket", "a")
    assert not bucket.blob("a").exists()
    gcs.put("bucket", "a", b"theirs")
    gcs.remove_bucket("bucket")
    with pytest.raises(NotFound, match="bucket"):
        upload(bucket, "a")
