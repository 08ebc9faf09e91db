"""Each fault is seen by the google-cloud-storage client as the fault that it is."""

from __future__ import annotations

import io
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from keras_preempt.testing import FAULT_KINDS, FakeGcs, Faults
from keras_preempt.testing.buckets.faults import APPLICABLE, DEFAULT_KINDS
from tests.testing.conftest import QUICK, wait_until

CONTENT = random.Random(2).randbytes(300_000)
_TIMEOUT = (5, 0.3)


def upload(bucket, name="a", **options):
    bucket.blob(name).upload_from_string(CONTENT, checksum="crc32c", retry=None, **options)


def flipped_bits(content):
    """How many bits of each byte are others than were written, where any is."""
    return [(x ^ y).bit_count() for x, y in zip(CONTENT, content, strict=True) if x != y]


def seen(gcs, kind):
    return [request for request in gcs.requests if request.fault == kind]


@pytest.mark.parametrize("kind", ["403", "429", "500", "502", "503", "504"])
def test_an_error_status_is_raised_and_nothing_takes_effect(gcs, bucket, kind):
    gcs.put("bucket", "there", CONTENT)
    gcs.fail_next(kind, times=4)
    for call in (
        lambda: upload(bucket),
        lambda: bucket.blob("there").delete(retry=None),
        lambda: bucket.blob("there").download_as_bytes(retry=None),
        lambda: list(bucket.list_blobs(retry=None)),
    ):
        with pytest.raises(exceptions.from_http_status(int(kind), "").__class__):
            call()
    assert [request.status for request in seen(gcs, kind)] == [int(kind)] * 4
    assert set(gcs.objects("bucket")) == {"there"}
    gcs.faults = Faults(retry_after=17)
    gcs.fail_next(kind)
    with pytest.raises(exceptions.GoogleAPICallError) as error:
        upload(bucket)
    assert error.value.response.headers.get("Retry-After") == ("17" if kind == "429" else None)


def test_a_reset_reaches_the_client_and_nothing_takes_effect(gcs, bucket):
    gcs.fail_next("reset", times=2)
    with pytest.raises(requests.ConnectionError, match="ConnectionResetError"):
        upload(bucket)
    assert gcs.objects("bucket") == {}
    gcs.put("bucket", "a", CONTENT)
    with pytest.raises(requests.ConnectionError, match="ConnectionResetError"):
        bucket.blob("a").download_as_bytes(retry=None)
    assert [request.status for request in seen(gcs, "reset")] == [None, None]


def test_a_stalled_request_times_out_takes_effect_later_and_does_not_hold_up_the_servers_end(gcs, bucket):
    gcs.fail_next("stall", stall_seconds=1)
    with pytest.raises(requests.Timeout):
        upload(bucket, timeout=_TIMEOUT)
    assert gcs.objects("bucket") == {}
    wait_until(lambda: bool(gcs.objects("bucket")), "the upload takes effect")
    assert gcs.content("bucket", "a") == CONTENT
    gcs.fail_next("stall", stall_seconds=3600)
    with pytest.raises(requests.Timeout):
        upload(bucket, timeout=_TIMEOUT)


def test_a_lost_response_hides_a_write_that_took_effect(gcs, bucket):
    gcs.fail_next("lost-response", times=2)
    with pytest.raises(requests.ConnectionError):
        upload(bucket, if_generation_match=0)
    assert gcs.content("bucket", "a") == CONTENT
    with pytest.raises(requests.ConnectionError):
        bucket.blob("a").delete(retry=None)
    assert gcs.objects("bucket") == {}


@pytest.mark.parametrize("chunk_size", [None, 256 * 1024])
def test_an_empty_response_says_nothing_of_a_write_that_took_effect(gcs, bucket, chunk_size):
    gcs.fail_next("empty-response", match="upload_id=" if chunk_size else "uploadType=multipart")
    blob = bucket.blob("a", chunk_size=chunk_size)
    content = CONTENT[: 200 * 1024]  # In one piece, whose answer is the object's resource.
    size = None if chunk_size else len(content)
    with pytest.raises((requests.JSONDecodeError, InvalidResponse, DataCorruption)):
        blob.upload_from_file(io.BytesIO(content), size=size, checksum="crc32c", retry=None)
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "a") == content


def test_after_a_lost_response_the_clients_retry_fails_on_its_own_write(gcs, bucket):
    gcs.fail_next("lost-response")
    blob = bucket.blob("a")
    blob.metadata = {"token": "mine"}
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(CONTENT, checksum="crc32c", retry=QUICK, if_generation_match=0)
    assert gcs.objects("bucket")["a"].metadata == {"token": "mine"}


def test_after_the_end_of_a_resumable_upload_was_lost_the_client_gets_its_object(gcs, bucket):
    gcs.fail_next("lost-response", match="PUT")
    blob = bucket.blob("a", chunk_size=1 << 20)
    blob.upload_from_file(io.BytesIO(CONTENT), checksum="crc32c", retry=QUICK, if_generation_match=0)
    assert blob.generation == gcs.objects("bucket")["a"].generation
    assert len(seen(gcs, "lost-response")) == 1


def test_a_truncated_download_is_noticed_and_resumed(gcs, bucket):
    upload(bucket)
    gcs.fail_next("truncated", times=2)
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        bucket.blob("a").download_as_bytes(retry=None)
    assert bucket.blob("a").download_as_bytes(retry=QUICK, checksum="crc32c") == CONTENT


def test_a_corrupted_download_differs_by_one_bit_and_is_found_by_its_checksum_but_in_a_range(gcs, bucket):
    upload(bucket)
    gcs.fail_next("corrupted", times=3)
    with pytest.raises(DataCorruption):
        bucket.blob("a").download_as_bytes(retry=QUICK, checksum="crc32c")
    assert flipped_bits(bucket.blob("a").download_as_bytes(checksum=None)) == [1]
    assert bucket.blob("a").download_as_bytes(start=0, end=99_999, checksum="crc32c") != CONTENT[:100_000]


@pytest.mark.parametrize("chunk_size", [None, 256 * 1024])
def test_an_upload_corrupted_on_its_way_is_refused_or_stored_so_unchecked(gcs, bucket, chunk_size):
    gcs.fail_next("corrupted-upload")
    blob = bucket.blob("a", chunk_size=chunk_size)
    with pytest.raises(exceptions.BadRequest, match="CRC32C"):
        blob.upload_from_file(io.BytesIO(CONTENT), checksum="crc32c", retry=None)
    assert gcs.objects("bucket") == {}
    gcs.fail_next("corrupted-upload")
    bucket.blob("a", chunk_size=chunk_size).upload_from_file(io.BytesIO(CONTENT), checksum=None)
    assert flipped_bits(gcs.content("bucket", "a")) == [1]


def test_a_lost_session_ends_a_resumable_upload(gcs, bucket):
    gcs.fail_next("session-lost")
    blob = bucket.blob("a", chunk_size=256 * 1024)
    with pytest.raises(exceptions.GoogleAPICallError) as error:
        blob.upload_from_file(io.BytesIO(CONTENT), retry=QUICK, checksum="crc32c")
    assert error.value.code == 410
    assert gcs.objects("bucket") == {}


def test_a_slow_request_is_slow_and_the_next_one_on_its_connection_is_not(gcs, bucket):
    gcs.faults = Faults(slow_bytes_per_second=len(CONTENT))
    gcs.put("bucket", "a", CONTENT)
    gcs.fail_next("slow")
    begin = time.monotonic()
    assert bucket.blob("a").download_as_bytes() == CONTENT
    assert time.monotonic() - begin > 0.8
    begin = time.monotonic()
    assert bucket.blob("a").download_as_bytes() == CONTENT
    assert time.monotonic() - begin < 0.8


def test_a_fault_meets_the_request_that_it_is_meant_for(gcs, bucket):
    gcs.fail_next("503", match="bucket/b")
    gcs.fail_next("corrupted", match="bucket/a")
    upload(bucket, "a")  # A corrupted download cannot happen to an upload: it is kept for one.
    with pytest.raises(exceptions.ServiceUnavailable):
        upload(bucket, "b")
    assert gcs.pending_faults == 1
    with pytest.raises(DataCorruption):
        bucket.blob("a").download_as_bytes()
    gcs.fail_next("503", match="GET /storage/v1/b/bucket?")
    with pytest.raises(exceptions.ServiceUnavailable):
        bucket.reload(retry=None)


def run_seeded(faults):
    """The faults that the same 60 requests meet."""
    with FakeGcs(faults=faults) as gcs:
        gcs.put("bucket", "a", CONTENT)
        bucket = gcs.client().bucket("bucket")
        for number in range(60):
            try:
                if number % 2:
                    bucket.blob("a").download_as_bytes(retry=None)
                else:
                    upload(bucket, f"n{number % 5}")
            except (exceptions.GoogleAPICallError, requests.RequestException, DataCorruption):
                pass
        return [(r.method, r.target, r.fault) for r in gcs.requests if r.target != "bucket/"]


def test_faults_by_seed_are_the_same_in_every_run_and_as_many_as_asked_for():
    kinds = tuple(kind for kind in DEFAULT_KINDS if kind != "stall")
    first = run_seeded(Faults(seed=3, rate=0.3, kinds=kinds))
    assert run_seeded(Faults(seed=3, rate=0.3, kinds=kinds)) == first
    assert run_seeded(Faults(seed=4, rate=0.3, kinds=kinds)) != first
    assert 8 <= sum(fault is not None for _, _, fault in first) <= 30
    assert all(fault is None for _, _, fault in run_seeded(Faults(seed=3, kinds=kinds)))
    assert all(fault is not None for _, _, fault in run_seeded(Faults(rate=1, kinds=kinds)))


def test_every_request_meets_a_fault_that_can_happen_to_it_at_the_rate_asked_for():
    for sort, applicable in APPLICABLE.items():
        faults = Faults(seed=1, rate=0.1, kinds=FAULT_KINDS)
        drawn = [faults.draw(sort, nth, applicable) for nth in range(3000)]
        met = [kind for kind in drawn if kind]
        assert 200 < len(met) < 400
        assert set(met) == set(applicable)


def test_seeded_faults_spare_the_buckets_own_metadata(gcs, bucket):
    gcs.faults = Faults(rate=1, kinds=("503",))
    bucket.reload(retry=None)
    gcs.faults = None
    upload(bucket)


def test_through_any_faults_that_pass_every_object_arrives_whole(gcs):
    kinds = ("408", "429", "500", "502", "503", "504", "lost-response", "reset", "truncated")
    gcs.faults = Faults(seed=5, rate=0.25, kinds=kinds)
    contents = {f"n{n}": random.Random(n).randbytes(random.Random(n).randrange(700_000)) for n in range(40)}
    local = threading.local()

    def move(name):
        if not hasattr(local, "bucket"):
            local.bucket = gcs.client().bucket("bucket")
        file = io.BytesIO(contents[name])
        blob = local.bucket.blob(name, chunk_size=256 * 1024)
        blob.upload_from_file(file, checksum="crc32c", retry=QUICK)
        return blob.download_as_bytes(checksum="crc32c", retry=QUICK) == contents[name]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(move, contents))
    assert {request.fault for request in gcs.requests} == {None, *kinds}


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (Faults, {"kinds": ("flood",)}, "'flood'"),
        (Faults, {"rate": 1.5}, "rate"),
        (Faults, {"stall_seconds": -1}, "stall_seconds"),
        (Faults, {"slow_bytes_per_second": 0}, "slow_bytes_per_second"),
        (FakeGcs, {"deny": ("read",)}, "'read'"),
        (FakeGcs, {"bytes_per_second": 0}, "bytes_per_second"),
        (FakeGcs, {"machine_bytes_per_second": (1, 0)}, "machine_bytes_per_second"),
        (FakeGcs, {"bucket_bytes_per_second": -1}, "bucket_bytes_per_second"),
        (FakeGcs().fail_next, {"kind": "flood"}, "'flood'"),
        (FakeGcs().fail_next, {"kind": "503", "times": 0}, "times"),
    ],
)
def test_nonsense_is_refused(make, arguments, named):
    with pytest.raises(ValueError, match=rf"Expected (?=.*{named}).* Received: .* Correct"):
        make(**arguments)


def test_the_documentation_lists_every_fault():
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    table = page.partition("| fault |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(FAULT_KINDS)
