"""Errors of the storage client, explained: what failed, and what to do about it."""

from __future__ import annotations

import re
from typing import Any

import requests
import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from keras_preempt.checkpoint.errors import StoreUnavailable

ROLE = "roles/storage.objectUser"
"""The narrowest predefined role that may create, read, list and delete objects."""

_LOGIN = (
    "Attach a service account to the machine, set GOOGLE_APPLICATION_CREDENTIALS to the file of a key, or run "
    "`gcloud auth application-default login`."
)

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""The statuses after which a request is tried again for as long as there is time."""

_NO_SUCH_SERVER: Any = getattr(urllib3.exceptions, "NameResolutionError", ())  # since urllib3 2.0

_CONNECTION = re.compile(r"\A\w+\(host='[^']*', port=\d+\): ")  # what urllib3 puts before a reason


class EmptyAnswer(Exception):
    """The service has reported success without the data that belongs to it."""


class NoTokenYet(requests.ConnectionError):
    """The server of the credentials' tokens has failed in a way that passes; the request was not sent."""


class OddAnswer(requests.ConnectionError):
    """Something other than the service has answered, such as a proxy or a login page."""

    @classmethod
    def of(cls, error: requests.JSONDecodeError) -> OddAnswer:
        """Returns the same for an answer that is no JSON."""
        return cls(f"an answer that is no JSON: {error.doc[:60]!r}")


FAILURES = (
    EmptyAnswer,
    api.GoogleAPIError,
    auth.GoogleAuthError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    InvalidResponse,
    DataCorruption,
    OSError,
)
"""Everything that the client raises when a call fails."""


def cause_of(error: BaseException) -> BaseException:
    """Returns why a call failed, when the error says only that its retries are used up."""
    while isinstance(error, api.RetryError) and error.cause is not None:
        error = error.cause
    return error.__cause__ if isinstance(error, NoTokenYet) and error.__cause__ else error


def token_may_come(error: auth.GoogleAuthError) -> bool:
    """Returns whether a token that could not be had may be had later."""
    if getattr(error, "retryable", False):  # since google-auth 2.9
        return True
    failed = error.__cause__ if isinstance(error, auth.RefreshError) else error
    if not isinstance(failed, auth.TransportError):
        return False
    # The client says so of a token server, and gives only the answer of a metadata server.
    status = getattr(failed.args[-1], "status", None) if failed.args else None
    return status is None or status in _PASSING


def is_passing(error: BaseException) -> bool:
    """Returns whether the failed call may succeed when it is made again."""
    error = cause_of(error)
    if isinstance(error, auth.GoogleAuthError):
        return token_may_come(error)
    status = status_of(error)
    return status is None or status in _PASSING


def may_have_happened(error: BaseException) -> bool:
    """Returns whether the failed write may have taken effect nevertheless."""
    cause = cause_of(error)
    # Then no request has left this machine.
    no_connection = isinstance(cause, requests.ConnectTimeout) or isinstance(
        _reason(cause), (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    )
    return is_passing(cause) and not isinstance(cause, auth.GoogleAuthError) and not no_connection


def may_still_happen(error: BaseException) -> bool:
    """Returns whether the failed write may still take effect later: the service has not answered it."""
    error = cause_of(error)
    if not may_have_happened(error) or isinstance(error, DataCorruption):
        return False
    # Those answers come from a proxy in front of the service, and say nothing about the service itself.
    return status_of(error) in (None, 408, 502, 504)


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error stands for; None if there was no answer."""
    if isinstance(error, api.GoogleAPICallError):
        return None if error.code is None else int(error.code)
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return None


def is_missing_bucket(error: BaseException) -> bool:
    """Returns whether a 404 says that the bucket is missing and not an object in it."""
    return status_of(error) == 404 and "bucket does not exist" in _message(error).lower()


def is_policy(error: BaseException) -> bool:
    """Returns whether a request was refused by a constraint of the organization, which answers 412 like a condition."""
    return status_of(error) == 412 and "constraint" in _message(error).lower()


def unavailable(
    error: BaseException, doing: str, url: str, endpoint: str, refused: str | None = None
) -> StoreUnavailable:
    """Returns the error to raise for what the client has raised while `doing` something, such as "create 'run.json'".

    `refused` is the text of a last answer with status 401: the client then asks for a new token, and raises only what
    became of that.
    """
    error = cause_of(error)
    status, message = status_of(error), _message(error).strip().rstrip(".")
    received = f"{message:.400}" if status is None else f"{status} {message:.400}"
    if refused is not None and isinstance(error, auth.GoogleAuthError):
        received = f"401 {refused:.400}, and then: {received}"
    return StoreUnavailable(
        f"Expected to {doing} in {url}. Received: {received}. {_cure(error, url, endpoint)}"
    )


def _message(error: BaseException) -> str:
    if isinstance(error, api.GoogleAPICallError):
        return told_by(error.response, error.message)
    if isinstance(error, InvalidResponse):
        return told_by(error.response, error.response.text)
    return _CONNECTION.sub("", str(_reason(error))) or type(error).__name__


def told_by(response: Any, otherwise: object) -> str:
    """Returns the sentence in an answer that is an error, or another text if it has none."""
    try:
        told = str(response.json()["error"]["message"])
    except (AttributeError, ValueError, KeyError, TypeError):  # no answer at all, no JSON, or some other JSON
        told = ""
    return (told or str(otherwise)).strip().rstrip(".")


def _reason(error: BaseException) -> BaseException:
    """Returns why there was no answer, without the layers that say only that there was none."""
    inner = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    reason = getattr(inner, "reason", None)
    return reason if isinstance(reason, BaseException) else error


def _cure(error: BaseException, url: str, endpoint: str) -> str:
    bucket = url.split("/")[2]
    if isinstance(error, auth.DefaultCredentialsError):
        return f"There are no Google Cloud credentials. {_LOGIN}"
    if isinstance(error, auth.GoogleAuthError) and token_may_come(error):
        return (
            "The server that gives the credentials their tokens failed or could not be reached; it was retried as long "
            "as there was time."
        )
    if isinstance(error, auth.GoogleAuthError):
        return f"The credentials were not accepted, or have expired. {_LOGIN}"
    status = status_of(error)
    if status == 401:
        return f"The credentials were not accepted. {_LOGIN}"
    told = _message(error).lower()
    if is_policy(error):
        return "A policy of the organization forbids this. Ask its administrator, or use another bucket."
    if status == 403 and ("retention" in told or " hold" in told):
        return (
            "Old checkpoints are removed, which this bucket forbids for a while. Use a bucket without a retention "
            "policy, object retention or holds."
        )
    if status == 403:
        return (
            f"Give this account {ROLE} on the bucket: `gcloud storage buckets add-iam-policy-binding "
            f"gs://{bucket} --member=... --role={ROLE}`; if it has that role, look for a disabled billing account."
        )
    if status == 400 and "requester pays" in told:
        return (
            "Whoever makes requests to this bucket pays for them, and would have to name a project. Use a bucket of "
            f"your own, or `gcloud storage buckets update gs://{bucket} --no-requester-pays`."
        )
    if status == 404:
        return (
            f"Check the name of the bucket and its project, or create it with `gcloud storage buckets create "
            f"gs://{bucket}`."
        )
    if status == 410:
        return "The service has forgotten this upload. Save again; if that persists, look at its status page."
    if status == 412:
        return (
            "The server says that the object exists, but shows none: something removes objects here at the same time, "
            f"or {endpoint} does not enforce preconditions. Give each job a prefix of its own."
        )
    if isinstance(_reason(error), _NO_SUCH_SERVER):
        return (
            f"There is no such server: check its name, as {endpoint}, and the region in it if it is that of a region, "
            "and whether this machine can resolve names."
        )
    if isinstance(error, (EmptyAnswer, OddAnswer)):
        return f"Check that {endpoint} is Google Cloud Storage, and what is between it and this machine."
    if status is None:
        return f"Check the network on the way to {endpoint}, and that this is the right server."
    if status in _PASSING:
        return "The service is overloaded or down; it was retried as long as there was time."
    return f"The server {endpoint} does not take this request; check the bucket's name and the endpoint."
