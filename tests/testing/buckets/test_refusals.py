"""Operations, credentials and policies that FakeS3 and FakeAzure refuse, as obstore meets them."""

from __future__ import annotations

import obstore
import pytest
from obstore.exceptions import BaseError, PermissionDeniedError

from keras_preempt.testing import FakeAzure, FakeS3
from tests.testing.buckets.conftest import store_of


def test_a_denied_operation_is_forbidden_and_no_other(fake, store):
    store.put("a", b"content")
    calls = {
        "create": lambda: store.put("new", b""),
        "get": lambda: store.head("a"),
        "list": lambda: store.list().collect(),
        "delete": lambda: store.delete("a"),
    }
    for operation, call in calls.items():
        fake.deny = [operation]
        with pytest.raises(BaseError, match=r"403|AccessDenied"):
            call()
        assert set(fake.objects("bucket")) == {"a"}
        for other in calls.keys() - {operation, "delete", "create"}:
            calls[other]()
    fake.deny = ()
    calls["delete"]()
    assert fake.objects("bucket") == {}


def test_only_s3_hides_what_is_missing_from_those_who_cannot_list(fake, store):
    fake.deny = {"list"}
    with pytest.raises(PermissionDeniedError if isinstance(fake, FakeS3) else FileNotFoundError):
        store.head("missing")


def test_without_credentials_everything_is_refused(fake, store):
    store.put("a", b"")
    fake.unauthenticated = True
    for call in (lambda: store.put("b", b""), lambda: store.list().collect(), lambda: store.head("a")):
        with pytest.raises(BaseError):
            call()
    assert {request.status for request in fake.requests[1:]} == {403 if isinstance(fake, FakeS3) else 401}
    fake.unauthenticated = False
    store.head("a")


def test_credentials_of_others_are_refused(fake):
    wrong = "AAAA" * 8
    config = {"secret_access_key": wrong} if isinstance(fake, FakeS3) else {"account_key": wrong}
    with pytest.raises(PermissionDeniedError):
        store_of(fake, **config).put("a", b"")
    assert fake.objects("bucket") == {}


def test_a_token_counts_until_it_expires(fake):
    name = "session_token" if isinstance(fake, FakeS3) else "token"
    config = {name: "first"}
    store = store_of(fake, **config)
    store.put("a", b"")
    fake.expired_tokens.add("first")
    with pytest.raises(BaseError):
        store.put("b", b"")
    store_of(fake, **{name: "second"}).put("b", b"")
    assert set(fake.objects("bucket")) == {"a", "b"}


def test_a_request_for_another_region_says_where_the_bucket_is():
    with FakeS3() as s3, pytest.raises(BaseError, match="expecting 'us-east-1'"):
        store_of(s3, region="eu-west-1").put("a", b"")
    with FakeS3(region="eu-west-1") as s3:
        store_of(s3).put("a", b"")
        assert s3.client().get_bucket_location(Bucket="bucket")["LocationConstraint"] == "eu-west-1"


def test_a_bucket_that_is_not_there_is_told_from_a_missing_object(fake, store):
    with pytest.raises(FileNotFoundError):
        store.get("missing")
    with pytest.raises(FileNotFoundError, match=r"NoSuchBucket|ContainerNotFound"):
        store_of(fake, "elsewhere").get("a")
    fake.remove_bucket("bucket")
    with pytest.raises(FileNotFoundError, match=r"NoSuchBucket|ContainerNotFound"):
        store.put("a", b"")
    with pytest.raises(KeyError, match=type(fake).__name__):
        fake.objects("bucket")


def test_retention_keeps_versions_on_s3_and_blobs_on_azure(fake, store):
    fake.versioned = True
    store.put("a", b"first")
    fake.policies = ("retention",)
    if isinstance(fake, FakeAzure):
        for change in (lambda: store.delete("a"), lambda: store.put("a", b"second")):
            with pytest.raises(BaseError, match=r"BlobImmutableDueToPolicy|409"):
                change()
        store.put("b", b"")
        assert fake.content("bucket", "a") == b"first"
        return
    version = fake.client().head_object(Bucket="bucket", Key="a")["VersionId"]
    store.delete("a")  # A mark comes on top.
    assert fake.objects("bucket") == {}
    with pytest.raises(Exception, match="object lock"):
        fake.client().delete_object(Bucket="bucket", Key="a", VersionId=version)
    store.put("a", b"second", mode="create")
    assert fake.content("bucket", "a") == b"second"


def test_a_deleted_blob_stays_as_a_version_where_they_are_kept(fake, store):
    fake.versioned = True
    version = store.put("a", b"first")["version"]
    store.put("a", b"second")
    store.delete("a")
    assert fake.objects("bucket") == {}
    assert bytes(obstore.get(store, "a", options={"version": version}).bytes()) == b"first"


def test_a_policy_refuses_what_it_forbids(fake, store):
    for policy in set(fake.policy_names) - {"retention"}:
        fake.policies = (policy,)
        with pytest.raises(BaseError):
            store.put("a", b"")
        fake.policies = ()
        store.put("a", b"")


def test_things_can_change_behind_the_client(fake, store):
    generation = fake.put("bucket", "a", b"theirs")
    assert bytes(store.get("a").bytes()) == b"theirs"
    assert fake.objects("bucket")["a"][:2] == (generation, 6)
    fake.remove("bucket", "a")
    with pytest.raises(FileNotFoundError):
        store.get("a")
    fake.forget_requests()
    assert fake.requests == []
