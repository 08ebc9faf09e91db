"""Operations that a bucket denies, and requests without credentials, as the google-cloud-storage client meets them."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.auth.exceptions import InvalidOperation

from tests.testing.gcs.test_objects import upload


def test_a_denied_operation_is_forbidden_and_no_other(gcs, bucket):
    upload(bucket, "a")
    calls = {
        "bucket": bucket.reload,
        "create": lambda: upload(bucket, "new"),
        "delete": lambda: bucket.blob("a").delete(),
        "get": lambda: bucket.blob("a").download_as_bytes(),
        "list": lambda: list(bucket.list_blobs()),
        "update": lambda: bucket.blob("a").patch(),
    }
    for operation, call in calls.items():
        gcs.deny = [operation]
        with pytest.raises(exceptions.Forbidden, match=r"storage\.\w+\.\w+"):
            call()
    with pytest.raises(ValueError, match=r"Expected .* Received: \['read'\]"):
        gcs.deny = {"read"}
    assert gcs.deny == {"update"}
    assert calls["get"]() == b"content"
    gcs.deny = ()
    for operation in ("bucket", "create", "get", "list", "update", "delete"):
        calls[operation]()


def test_permission_to_delete_is_needed_to_replace_and_to_list_to_learn_what_is_missing(gcs, bucket):
    upload(bucket, "a")
    gcs.deny.add("delete")
    upload(bucket, "b")
    with pytest.raises(exceptions.Forbidden, match="delete"):
        upload(bucket, "a")
    permissions = ["storage.objects.create", "storage.objects.delete"]
    assert bucket.test_iam_permissions(permissions) == ["storage.objects.create"]
    gcs.deny.clear()
    upload(bucket, "a")
    gcs.deny = {"list"}  # Then nobody learns that an object is missing.
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("missing").download_as_bytes()


def test_without_credentials_everything_is_refused(gcs, bucket):
    gcs.unauthenticated = True
    for call in (lambda: upload(bucket, "a"), lambda: list(bucket.list_blobs()), bucket.reload):
        # Told 401, the client tries to refresh its credentials; anonymous ones cannot be.
        with pytest.raises(InvalidOperation, match="cannot be refreshed"):
            call()
    refused = [request for request in gcs.requests if request.status == 401]
    assert {request.method for request in refused} == {"POST", "GET"}
    assert len(refused) >= 3
    gcs.unauthenticated = False
    upload(bucket, "a")


def test_a_policy_refuses_what_it_forbids_and_nothing_else(gcs, bucket):
    upload(bucket, "a")
    gcs.policies = ("retention",)
    with pytest.raises(exceptions.Forbidden, match="retention policy"):
        bucket.blob("a").delete()
    upload(bucket, "b")
    gcs.policies = ("organization",)
    with pytest.raises(exceptions.PreconditionFailed, match="constraint"):
        upload(bucket, "c")
    bucket.blob("a").delete()
    gcs.policies = ("requester pays",)
    for call in (lambda: upload(bucket, "c"), lambda: list(bucket.list_blobs()), bucket.reload):
        with pytest.raises(exceptions.BadRequest, match="requester pays"):
            call()
    with pytest.raises(ValueError, match=r"Expected policies .* Received: \['quota'\]"):
        gcs.policies = ("quota",)
    gcs.policies = ()
    upload(bucket, "c")
