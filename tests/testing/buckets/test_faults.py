"""Each fault of FakeS3 and FakeAzure is seen by obstore as the fault that it is."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
import requests
from azure.core.exceptions import ResourceExistsError
from botocore.exceptions import ClientError
from obstore.exceptions import BaseError, GenericError

from keras_preempt.testing import FakeAzure, FakeS3, Faults
from keras_preempt.testing.buckets.faults import DEFAULT_KINDS
from tests.testing.buckets.cases import Step
from tests.testing.buckets.conftest import FAKES, store_of
from tests.testing.buckets.s3_steps import CHUNKED, chunks
from tests.testing.buckets.signing import s3_sender
from tests.testing.conftest import wait_until

CONTENT = random.Random(2).randbytes(300_000)


def content_of(store: obstore.store.ObjectStore, name: str = "a") -> bytes:
    return bytes(store.get(name).bytes())


def seen(fake, kind):
    return [request for request in fake.requests if request.fault == kind]


def flipped_bits(content):
    return [(x ^ y).bit_count() for x, y in zip(CONTENT, content, strict=True) if x != y]


@pytest.mark.parametrize("kind", ["401", "403", "408", "429", "500", "502", "503", "504", "expired-token"])
def test_an_error_status_is_raised_and_nothing_takes_effect(fake, store, kind):
    fake.put("bucket", "there", CONTENT)
    fake.fail_next(kind, times=4)
    for call in (
        lambda: store.put("a", CONTENT),
        lambda: store.head("there"),
        lambda: content_of(store, "there"),
        lambda: store.list().collect(),
    ):
        with pytest.raises(BaseError):
            call()
    status = {"s3": 400, "azure": 403}[(fake.endpoint.count("/") > 2 and "azure") or "s3"]
    wanted = status if kind == "expired-token" else int(kind)
    assert [request.status for request in seen(fake, kind)] == [wanted] * 4
    assert set(fake.objects("bucket")) == {"there"}


def test_a_429_says_when_to_come_back(fake):
    fake.faults = Faults(retry_after=17)
    fake.fail_next("429")
    assert requests.get(f"{fake.endpoint}/bucket/a", timeout=10).headers["Retry-After"] == "17"


def test_a_503_says_slow_down_in_the_services_words(fake):
    fake.fail_next("503")
    code = {FakeS3: "SlowDown", FakeAzure: "ServerBusy"}[type(fake)]
    assert f"<Code>{code}</Code>" in requests.get(f"{fake.endpoint}/bucket/a", timeout=10).text


@pytest.mark.parametrize("kind", ["409", "412"])
def test_a_conflict_meets_only_a_write_with_a_precondition_of_which_nothing_is_stored(fake, store, kind):
    fake.fail_next(kind)
    store.put("plain", CONTENT)
    assert fake.pending_faults == 1
    with pytest.raises(BaseError):
        store.put("a", CONTENT, mode="create")
    assert set(fake.objects("bucket")) == {"plain"}
    assert [request.status for request in seen(fake, kind)] == [int(kind)]


def test_a_reset_reaches_the_client_and_nothing_takes_effect(fake, store):
    fake.fail_next("reset", times=2)
    with pytest.raises(GenericError):
        store.put("a", CONTENT)
    assert fake.objects("bucket") == {}
    assert seen(fake, "reset")[0].bytes == len(CONTENT) // 2
    fake.put("bucket", "a", CONTENT)
    with pytest.raises(GenericError):
        content_of(store)
    assert [request.status for request in seen(fake, "reset")] == [None, None]


def test_a_stalled_request_takes_effect_later_and_does_not_hold_up_the_servers_end(fake):
    fake.fail_next("stall", stall_seconds=1)
    client = fake.client(**quick(fake))
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        put_by(fake, client)
    assert fake.objects("bucket") == {}
    wait_until(lambda: bool(fake.objects("bucket")), "the upload takes effect")
    fake.fail_next("stall", stall_seconds=3600)
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        put_by(fake, client)


def quick(fake):
    """Options of a vendor's client that gives up soon, and does not try again."""
    if isinstance(fake, FakeS3):
        from botocore.config import Config

        return {"config": Config(read_timeout=0.3, retries={"total_max_attempts": 1})}
    return {"read_timeout": 0.3, "retry_total": 0}


def put_by(fake, client):
    if isinstance(fake, FakeS3):
        return client.put_object(Bucket="bucket", Key="a", Body=b"x")
    return client.get_blob_client("bucket", "a").upload_blob(b"x", overwrite=True)


def test_a_lost_response_hides_a_write_that_took_effect(fake, store):
    fake.fail_next("lost-response")
    with pytest.raises(GenericError):
        store.put("a", CONTENT, mode="create")
    assert fake.content("bucket", "a") == CONTENT


def test_after_a_lost_response_the_clients_retry_fails_on_its_own_write(fake):
    fake.fail_next("lost-response")
    if isinstance(fake, FakeS3):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            fake.client().put_object(
                Bucket="bucket", Key="a", Body=b"x", IfNoneMatch="*", Metadata={"token": "mine"}
            )
    else:
        blob = fake.client(initial_backoff=0).get_blob_client("bucket", "a")
        with pytest.raises(ResourceExistsError, match="BlobAlreadyExists"):
            blob.upload_blob(b"x", metadata={"token": "mine"})
    assert fake.objects("bucket")["a"].metadata == {"token": "mine"}


def test_an_empty_response_says_nothing_of_a_write_that_took_effect(fake, store):
    fake.fail_next("empty-response")
    with pytest.raises(GenericError):
        store.put("a", CONTENT)
    assert fake.content("bucket", "a") == CONTENT


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_answers_with_success_has_done_nothing(fake, store, kind):
    fake.fail_next(kind)
    with pytest.raises(GenericError):
        store.put("a", CONTENT)
    assert fake.objects("bucket") == {}


def test_a_truncated_download_is_noticed(fake, store):
    fake.put("bucket", "a", CONTENT)
    fake.fail_next("truncated")
    with pytest.raises(GenericError):
        content_of(store)
    assert content_of(store_of(fake, retries=3)) == CONTENT


def test_a_corrupted_download_differs_by_one_bit_which_obstore_does_not_see(fake, store):
    fake.put("bucket", "a", CONTENT)
    fake.fail_next("corrupted")
    assert flipped_bits(content_of(store)) == [1]
    assert content_of(store) == CONTENT


def test_an_upload_corrupted_on_its_way_is_refused_if_it_carries_a_sum(fake):
    fake.fail_next("corrupted-upload", times=2)
    if isinstance(fake, FakeS3):
        with pytest.raises(GenericError, match="XAmzContentSHA256Mismatch"):
            store_of(fake).put("a", CONTENT)
        with pytest.raises(GenericError, match="BadDigest"):
            store_of(fake, checksum_algorithm="sha256", unsigned_payload=True).put("a", CONTENT)
        assert fake.objects("bucket") == {}
        fake.fail_next("corrupted-upload", times=2)
        in_chunks = Step("PUT", "a", {}, CHUNKED, chunks())
        assert b"<Code>BadDigest<" in s3_sender(fake.endpoint)(in_chunks).body
        store_of(fake, unsigned_payload=True).put("a", CONTENT)
    else:
        blob = fake.client().get_blob_client("bucket", "a")
        with pytest.raises(Exception, match="Md5Mismatch"):
            blob.upload_blob(CONTENT, validate_content=True)
        assert fake.objects("bucket") == {}
        store_of(fake).put("a", CONTENT)
    assert flipped_bits(fake.content("bucket", "a")) == [1]


def test_a_lost_upload_never_becomes_an_object(fake, store):
    fake.fail_next("session-lost")
    with pytest.raises((BaseError, FileNotFoundError)):
        store.put("a", bytes(12 << 20), use_multipart=True, max_concurrency=1)
    assert fake.objects("bucket") == {}


def test_a_slow_request_is_slow_and_the_next_one_is_not(fake, store):
    fake.faults = Faults(slow_bytes_per_second=len(CONTENT))
    fake.put("bucket", "a", CONTENT)
    fake.fail_next("slow")
    begin = time.monotonic()
    assert content_of(store) == CONTENT
    assert time.monotonic() - begin > 0.8
    begin = time.monotonic()
    assert content_of(store) == CONTENT
    assert time.monotonic() - begin < 0.8


def test_a_fault_meets_the_request_that_it_is_meant_for(fake, store):
    fake.fail_next("500", match="bucket/b")
    fake.fail_next("corrupted", match="bucket/a")
    store.put("a", CONTENT)
    with pytest.raises(GenericError):
        store.put("b", CONTENT)
    assert fake.pending_faults == 1
    assert content_of(store) != CONTENT


def run_seeded(service, faults, shuffle=0):
    """Which of the same requests fail, though several threads send them in any order, and the faults that they meet."""
    with FAKES[service](faults=faults) as fake:
        fake.put("bucket", "big", bytes(8 << 20))
        store = store_of(fake)

        def fails(number):
            try:
                if number % 2:
                    store.get_range("big", start=number * 1000, length=1000)
                else:
                    store.put(f"n{number}", CONTENT)
            except BaseError:
                return True
            return False

        order = random.Random(shuffle).sample(range(60), 60)
        with ThreadPoolExecutor(8) as pool:
            failed = list(pool.map(fails, order))
        met = [request.fault for request in fake.requests if request.fault is not None]
        return sorted(number for number, failure in zip(order, failed, strict=True) if failure), sorted(met)


@pytest.mark.parametrize("service", list(FAKES))
def test_faults_by_seed_are_the_same_whatever_the_order_of_requests(service):
    kinds = tuple(kind for kind in DEFAULT_KINDS if kind != "stall")
    first = run_seeded(service, Faults(seed=3, rate=0.3, kinds=kinds))
    assert run_seeded(service, Faults(seed=3, rate=0.3, kinds=kinds), shuffle=1) == first
    assert run_seeded(service, Faults(seed=4, rate=0.3, kinds=kinds)) != first
    assert 8 <= len(first[1]) <= 30


def test_through_any_faults_that_pass_every_object_arrives_whole(fake):
    kinds = ("429", "500", "502", "503", "504", "lost-response", "reset", "truncated")
    fake.faults = Faults(seed=5, rate=0.25, kinds=kinds, retry_after=0)
    store = store_of(fake, retries=12)
    contents = {f"n{n}": random.Random(n).randbytes(random.Random(n).randrange(700_000)) for n in range(40)}

    def move(name):
        store.put(name, contents[name])
        return content_of(store, name) == contents[name]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(move, contents))
    assert {request.fault for request in fake.requests} == {None, *kinds}


def test_what_cannot_happen_on_a_service_is_refused(fake):
    with pytest.raises(ValueError, match=r"Expected a kind of fault out of .* Received: 'flood'\."):
        fake.fail_next("flood")
    with pytest.raises(ValueError, match="times of at least 1"):
        fake.fail_next("503", times=0)
    with pytest.raises(ValueError, match=r"Received: \['read'\]"):
        fake.deny = {"read"}
    with pytest.raises(ValueError, match=re.escape("Received: ['quota']")):
        fake.policies = ("quota",)
    with pytest.raises(ValueError, match="bytes_per_second above 0"):
        type(fake)(bytes_per_second=0)
