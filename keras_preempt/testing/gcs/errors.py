"""The errors that Google Cloud Storage answers with, in the words of its JSON API.

Source: https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

from keras_preempt.testing.server import Reply


class GcsError(Exception):
    """An answer that is an error: its HTTP status, a word for programs, a sentence for people, and further headers."""

    def __init__(self, status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}

    def reply(self, *, media: bool) -> Reply:
        """The answer; requests for content (`media`) get the bare sentence, all others a JSON document."""
        if self.status == 304:
            return Reply(304, b"", dict(self.headers))
        if media:
            headers = {**self.headers, "Content-Type": "text/html; charset=UTF-8"}
            return Reply(self.status, self.message.encode(), headers)
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        error = {"code": self.status, "message": self.message, "errors": [entry]}
        reply = Reply.of({"error": error}, self.status)
        reply.headers.update(self.headers)
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

ERROR_STATUSES = frozenset(_STATUS_WORDS)
"""Statuses that can be answered whatever was asked."""


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


POLICIES = {
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
"""Settings of a bucket, or of what it is part of: the operations that they refuse to every caller, and the error."""
