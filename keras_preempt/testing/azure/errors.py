"""The errors that Azure Blob Storage answers with.

Source: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import ClassVar
from xml.sax.saxutils import escape

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.objects import OPERATIONS, BucketErrors
from keras_preempt.testing.server import Reply

_LONGEST_NAME = 1024  # characters


class AzureError(ServiceError):
    """An error in the words of Azure."""


def error_reply(error: ServiceError) -> Reply:
    if error.status == 304:
        return Reply(304, b"", dict(error.headers))
    time = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
    message = f"{error.message}\nRequestId:{secrets.token_hex(16)}\nTime:{time}"
    fields = {"Code": error.reason, "Message": message, **error.details}
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    body = f'<?xml version="1.0" encoding="utf-8"?><Error>{inner}</Error>'.encode()
    headers = {"Content-Type": "application/xml", "x-ms-error-code": error.reason, **error.headers}
    return Reply(error.status, body, headers, phrase=error.message)


CHALLENGE = {
    "WWW-Authenticate": "Bearer authorization_uri=https://login.microsoftonline.com/fake/oauth2/authorize "
    "resource_id=https://storage.azure.com"
}
_REFUSED_TOKEN = (
    "Server failed to authenticate the request. Please refer to the information in the www-authenticate "
    "header."
)
_OF_FAULTS = {
    "401": (401, "InvalidAuthenticationInfo", _REFUSED_TOKEN),
    "403": (403, "AuthorizationFailure", "This request is not authorized to perform this operation."),
    "408": (408, "RequestTimeout", "The request timed out."),
    "409": (409, "ContainerBeingDeleted", "The specified container is being deleted. Try operation later."),
    "412": (412, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met."),
    "429": (429, "TooManyRequests", "The request rate is too high. Try again later."),
    "500": (500, "InternalError", "The server encountered an internal error. Please retry the request."),
    "502": (502, "BadGateway", "Bad Gateway"),
    "503": (503, "ServerBusy", "The server is busy."),
    "504": (504, "GatewayTimeout", "Gateway Timeout"),
}


def azure_fault(kind: str) -> AzureError:
    """The error that a fault of this kind is answered with."""
    return AzureError(*_OF_FAULTS[kind], dict(CHALLENGE) if kind == "401" else None)


def authentication_failed(detail: str) -> AzureError:
    message = (
        "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly "
        "including the signature."
    )
    return AzureError(403, "AuthenticationFailed", message, AuthenticationErrorDetail=detail)


def token_expired() -> AzureError:
    detail = "Lifetime validation failed. The token is expired."
    return AzureError(
        401, "InvalidAuthenticationInfo", _REFUSED_TOKEN, dict(CHALLENGE), AuthenticationErrorDetail=detail
    )


def no_credentials() -> AzureError:
    return AzureError(401, "NoAuthenticationInformation", _REFUSED_TOKEN, dict(CHALLENGE))


def not_permitted() -> AzureError:
    message = "This request is not authorized to perform this operation using this permission."
    return AzureError(403, "AuthorizationPermissionMismatch", message)


def condition_unmet() -> AzureError:
    return azure_fault("412")


def blob_exists() -> AzureError:
    return AzureError(409, "BlobAlreadyExists", "The specified blob already exists.")


def bad_header(name: str, value: str) -> AzureError:
    message = "The value for one of the HTTP headers is not in the correct format."
    return AzureError(400, "InvalidHeaderValue", message, HeaderName=name, HeaderValue=value)


def bad_parameter(name: str, value: str) -> AzureError:
    message = "Value for one of the query parameters specified in the request URI is invalid."
    return AzureError(
        400, "InvalidQueryParameterValue", message, QueryParameterName=name, QueryParameterValue=value
    )


def bad_xml() -> AzureError:
    return AzureError(400, "InvalidXmlDocument", "XML specified is not syntactically valid.")


def not_answered(what: str) -> AzureError:
    """501: the real service can do this; the fake cannot, and does not pretend to."""
    message = f"Expected a request that FakeAzure can answer. Received: {what}, which it does not imitate."
    return AzureError(501, "NotImplemented", message)


class AzureBucketErrors(BucketErrors):
    """What is wrong with a container or a blob, as Azure says it."""

    policies: ClassVar[Mapping[str, Collection[str]]] = {
        "retention": ("delete", "delete-version", "replace", "update"),
        "organization": OPERATIONS,
    }
    hides_missing = False

    def policy(self, policy: str) -> AzureError:
        if policy == "retention":
            message = "This operation is not permitted as the blob is immutable due to a policy."
            return AzureError(409, "BlobImmutableDueToPolicy", message)
        message = "Key based authentication is not permitted on this storage account."
        return AzureError(403, "KeyBasedAuthenticationNotPermitted", message)

    def denied(self, operation: str, what: str) -> AzureError:
        return not_permitted()

    def no_bucket(self, name: str) -> AzureError:
        return AzureError(404, "ContainerNotFound", "The specified container does not exist.")

    def no_object(self, bucket: str, name: str) -> AzureError:
        return AzureError(404, "BlobNotFound", "The specified blob does not exist.")

    def bucket_exists(self, name: str) -> AzureError:
        return AzureError(409, "ContainerAlreadyExists", "The specified container already exists.")

    def bucket_holds_objects(self, name: str) -> AzureError:
        return AzureError(
            409, "ContainerNotEmpty", "The specified container is not empty."
        )  # Never asked for.

    def check_name(self, name: str) -> None:
        if len(name) > _LONGEST_NAME:
            message = "The specifed resource name contains invalid characters."
            raise AzureError(400, "InvalidResourceName", message)
