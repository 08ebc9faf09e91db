"""The errors that Google Cloud Storage answers with, in the words of its JSON API.

Source: https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.objects import BucketErrors
from keras_preempt.testing.server import Reply


class GcsError(ServiceError):
    """An error in the words of Google Cloud Storage."""


def reply_of(error: ServiceError, *, media: bool) -> Reply:
    """The answer; requests for content (`media`) get the bare sentence, all others a JSON document."""
    if error.status == 304:
        return Reply(304, b"", dict(error.headers))
    if media:
        headers = {**error.headers, "Content-Type": "text/html; charset=UTF-8"}
        return Reply(error.status, error.message.encode(), headers)
    entry = {"message": error.message, "domain": "global", "reason": error.reason}
    document = {"code": error.status, "message": error.message, "errors": [entry]}
    reply = Reply.of({"error": document}, error.status)
    reply.headers.update(error.headers)
    return reply


_STATUS_WORDS = {
    401: ("authError", "Invalid Credentials"),
    403: ("forbidden", "The caller does not have permission."),
    408: ("requestTimeout", "The request timed out."),
    429: ("rateLimitExceeded", "The object exceeded the rate limit for object mutation operations."),
    500: ("backendError", "Backend Error"),
    502: ("badGateway", "Bad Gateway"),
    503: ("backendError", "We encountered an internal error. Please try again."),
    504: ("gatewayTimeout", "Gateway Timeout"),
}


def plain_error(status: int, headers: dict[str, str] | None = None) -> GcsError:
    """An error that has nothing to do with the request itself; `status` is one of `ERROR_STATUSES`."""
    return GcsError(status, *_STATUS_WORDS[status], headers)


def condition_not_met() -> GcsError:
    return GcsError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def invalid(message: str) -> GcsError:
    """400: the request is malformed."""
    return GcsError(400, "invalid", message)


def not_built(what: str) -> GcsError:
    """501: the real service can do this; the fake cannot, and does not pretend to."""
    message = f"Expected a request that FakeGcs can answer. Received: {what}, which it does not imitate."
    return GcsError(501, "notImplemented", message)


_POLICIES: dict[str, tuple[tuple[str, ...], tuple[int, str, str]]] = {
    "retention": (
        ("delete",),
        (
            403,
            "retentionPolicyNotMet",
            "Object is subject to bucket's retention policy or object retention and cannot be deleted or overwritten "
            "until 2099-01-01T00:00:00Z",
        ),
    ),
    "requester pays": (
        ("bucket", "create", "delete", "get", "list", "update"),
        (400, "required", "Bucket is a requester pays bucket but no user project provided."),
    ),
    "organization": (
        ("create",),
        (412, "conditionNotMet", "Request violates constraint 'constraints/gcp.restrictNonCmekServices'"),
    ),
}
_LONGEST_NAME = 1024  # bytes


class GcsBucketErrors(BucketErrors):
    """What is wrong with a bucket or an object, as Google Cloud Storage says it."""

    policies: ClassVar[Mapping[str, Collection[str]]] = {
        policy: operations for policy, (operations, _) in _POLICIES.items()
    }
    replacing = "delete"  # Replacing an object takes the right to delete the old generation.

    def policy(self, policy: str) -> GcsError:
        return GcsError(*_POLICIES[policy][1])

    def denied(self, operation: str, what: str) -> GcsError:
        permission = "storage.buckets.get" if operation == "bucket" else f"storage.objects.{operation}"
        message = (
            f"The caller does not have {permission} access to the Google Cloud Storage {what}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
        return GcsError(403, "forbidden", message)

    def no_bucket(self, name: str) -> GcsError:
        return GcsError(404, "notFound", "The specified bucket does not exist.")

    def no_object(self, bucket: str, name: str) -> GcsError:
        return GcsError(404, "notFound", f"No such object: {bucket}/{name}")

    def bucket_exists(self, name: str) -> GcsError:
        return GcsError(409, "conflict", f"The bucket {name} exists already.")

    def bucket_holds_objects(self, name: str) -> GcsError:
        return GcsError(409, "conflict", "The bucket you tried to delete is not empty.")

    def check_name(self, name: str) -> None:
        if not name or len(name.encode()) > _LONGEST_NAME or "\n" in name or "\r" in name:
            raise invalid(f"Invalid object name: {name!r:.80}")
