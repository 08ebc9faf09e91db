"""The errors that Amazon S3 answers with.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar
from xml.sax.saxutils import escape

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.objects import BucketErrors

LONGEST_KEY = 1024  # bytes


class S3Error(ServiceError):
    """An error in the words of S3."""


def error_document(error: ServiceError, request_id: str) -> bytes:
    fields = {"Code": error.reason, "Message": error.message, **error.details, "RequestId": request_id}
    fields["HostId"] = "FakeS3"
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'.encode()


_OF_FAULTS = {
    "401": (401, "Unauthorized", "The provided credentials are not accepted."),
    "403": (403, "AccessDenied", "Access Denied"),
    "408": (
        408,
        "RequestTimeout",
        "Your socket connection to the server was not read from or written to in time.",
    ),
    "409": (
        409,
        "ConditionalRequestConflict",
        "The conditional request cannot succeed due to a conflicting operation against this resource.",
    ),
    "412": (412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"),
    "429": (429, "TooManyRequests", "Please reduce your request rate."),
    "500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "502": (502, "BadGateway", "Bad Gateway"),
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "504": (504, "GatewayTimeout", "Gateway Timeout"),
    "expired-token": (400, "ExpiredToken", "The provided token has expired."),
}


def s3_fault(kind: str) -> S3Error:
    """The error that a fault of this kind is answered with."""
    return S3Error(*_OF_FAULTS[kind])


def access_denied(message: str = "Access Denied") -> S3Error:
    return S3Error(403, "AccessDenied", message)


def invalid_request(message: str) -> S3Error:
    return S3Error(400, "InvalidRequest", message)


def malformed_xml() -> S3Error:
    message = "The XML you provided was not well-formed or did not validate against our published schema"
    return S3Error(400, "MalformedXML", message)


def not_imitated(what: str) -> S3Error:
    """501: the real service can do this; the fake cannot, and does not pretend to."""
    message = f"Expected a request that FakeS3 can answer. Received: {what}, which it does not imitate."
    return S3Error(501, "NotImplemented", message)


def precondition_failed(condition: str) -> S3Error:
    message = "At least one of the pre-conditions you specified did not hold"
    return S3Error(412, "PreconditionFailed", message, Condition=condition)


_PERMISSIONS = {
    "bucket": "s3:GetBucketLocation",
    "create": "s3:PutObject",
    "delete": "s3:DeleteObject",
    "get": "s3:GetObject",
    "list": "s3:ListBucket",
}

S3_OPERATIONS = tuple(_PERMISSIONS)
"""What permission can be denied for."""

_CALLER = "User: arn:aws:iam::123456789012:user/fake is not authorized to perform:"


class S3BucketErrors(BucketErrors):
    """What is wrong with a bucket or an object, as S3 says it."""

    policies: ClassVar[Mapping[str, Collection[str]]] = {
        "retention": ("delete-version",),
        "requester pays": S3_OPERATIONS,
        "organization": ("create",),
    }

    def policy(self, policy: str) -> S3Error:
        if policy == "retention":
            return access_denied("Access Denied because object protected by object lock.")
        if policy == "organization":
            return access_denied(f"{_CALLER} s3:PutObject with an explicit deny in a resource-based policy")
        return access_denied()

    def denied(self, operation: str, what: str) -> S3Error:
        why = f"because no identity-based policy allows the {_PERMISSIONS[operation]} action"
        return access_denied(f"{_CALLER} {_PERMISSIONS[operation]} on this {what} {why}")

    def no_bucket(self, name: str) -> S3Error:
        return S3Error(404, "NoSuchBucket", "The specified bucket does not exist", BucketName=name)

    def no_object(self, bucket: str, name: str) -> S3Error:
        return S3Error(404, "NoSuchKey", "The specified key does not exist.", Key=name)

    def bucket_exists(self, name: str) -> S3Error:
        message = "Your previous request to create the named bucket succeeded and you already own it."
        return S3Error(409, "BucketAlreadyOwnedByYou", message, BucketName=name)

    def bucket_holds_objects(self, name: str) -> S3Error:
        message = "The bucket you tried to delete is not empty"
        return S3Error(409, "BucketNotEmpty", message, BucketName=name)

    def check_name(self, name: str) -> None:
        if (size := len(name.encode())) > LONGEST_KEY:
            sizes = {"Size": str(size), "MaxSizeAllowed": str(LONGEST_KEY)}
            raise S3Error(400, "KeyTooLongError", "Your key is too long", **sizes)
