"""Who sends a request to Azure: the account's key, a bearer token, or a shared access signature.

Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from keras_preempt.testing.azure.call import AzureCall
from keras_preempt.testing.azure.errors import (
    AzureError,
    authentication_failed,
    no_credentials,
    not_permitted,
    token_expired,
)

_STANDARD_HEADERS = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
_MOST_SKEW = timedelta(minutes=15)

_PERMISSIONS = {"GET": "rl", "HEAD": "r", "PUT": "wc", "DELETE": "dx", "POST": "rwdlx"}
"""Of each method those permissions of a shared access signature of which it takes one."""


class Access:
    """Checks the credentials of requests to an account, whose key is in base64.

    `expired` are bearer tokens that have expired. They may change while requests are served.
    """

    def __init__(self, account: str, key: str, expired: Collection[str]) -> None:
        self._account = account
        self._key = base64.b64decode(key)
        self._expired = expired

    def check(self, call: AzureCall) -> None:
        """Raises `AzureError` unless the call comes from somebody who may make it."""
        scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if credentials in self._expired:
                raise token_expired()
        elif scheme == "SharedKey":
            self._check_key(call, credentials)
        elif scheme:
            raise AzureError(
                400,
                "InvalidAuthenticationInfo",
                "Authentication information is not given in the correct format.",
            )
        elif "sig" in call.query:
            self._check_signature(call)
        else:
            raise no_credentials()
        if call.account != self._account:
            message = "The specified account name does not fit the endpoint."
            raise authentication_failed(message)

    def _check_key(self, call: AzureCall, credentials: str) -> None:
        account, _, signature = credentials.partition(":")
        if account != self._account:
            raise authentication_failed(f"The account '{account}' is not the one of this endpoint.")
        try:
            sent = parsedate_to_datetime(call.headers.get("x-ms-date") or call.headers.get("date", ""))
        except (TypeError, ValueError):
            raise authentication_failed("The Date header in the request is incorrect.") from None
        if abs(datetime.now(timezone.utc) - sent) > _MOST_SKEW:
            raise authentication_failed(f"Request date header too old: '{sent}'")
        expected = base64.b64encode(
            hmac.digest(self._key, signed_text(call).encode(), hashlib.sha256)
        ).decode()
        if not hmac.compare_digest(expected, signature):
            raise authentication_failed(
                f"The MAC signature found in the HTTP request '{signature}' is not the same as any computed signature."
            )

    def _check_signature(self, call: AzureCall) -> None:
        """A shared access signature: when it ends, and what it permits. Its signature is not computed again."""
        try:
            ends = datetime.fromisoformat(call.query.get("se", "").replace("Z", "+00:00"))
        except ValueError:
            raise authentication_failed("Signature fields not well formed.") from None
        now = datetime.now(timezone.utc)
        if (ends if ends.tzinfo else ends.replace(tzinfo=timezone.utc)) < now:
            raise authentication_failed(
                f"Signature not valid in the specified time frame: Expiry [{ends}] - Current [{now}]"
            )
        if not set(call.query.get("sp", "")) & set(_PERMISSIONS.get(call.method, "")):
            raise not_permitted()


def signed_text(call: AzureCall) -> str:
    """What the signature with an account's key is of."""
    values = [call.headers.get(name, "") for name in _STANDARD_HEADERS]
    length = _STANDARD_HEADERS.index("content-length")
    values[length] = "" if values[length] == "0" else values[length]
    if "x-ms-date" in call.headers:
        values[_STANDARD_HEADERS.index("date")] = ""
    own = sorted(name for name in call.headers if name.startswith("x-ms-"))
    headers = "".join(f"{name}:{' '.join(call.headers[name].split())}\n" for name in own)
    query: dict[str, list[str]] = {}
    for name, value in call.pairs:
        query.setdefault(name.lower(), []).append(value)
    resource = f"/{call.account}{urlsplit(call.url).path}"
    resource += "".join(f"\n{name}:{','.join(sorted(values))}" for name, values in sorted(query.items()))
    return "\n".join([call.method, *values, headers + resource])
