"""Who sends a request to S3: Signature Version 4, in the Authorization header or in the query of a presigned URL.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

from keras_preempt.testing.buckets.calls import BucketCall
from keras_preempt.testing.s3.errors import S3Error, access_denied, invalid_request

_ALGORITHM = "AWS4-HMAC-SHA256"
_HEADER = re.compile(rf"{_ALGORITHM} +Credential=([^, ]+), *SignedHeaders=([^, ]+), *Signature=([0-9a-f]+)")
_SAFE = "-_.~"
_TIME = "%Y%m%dT%H%M%SZ"
_MOST_SKEW = timedelta(minutes=15)


@dataclass(frozen=True)
class _Signature:
    credential: str
    signed_headers: str
    value: str
    time: str
    token: str
    payload: str


class Signatures:
    """Checks the signatures of requests.

    Args:
        region: The only region for which a request may be signed.
        secrets: The secret of each access key. It may change while requests are served.
        expired: Session tokens that have expired. It may change, too.
    """

    def __init__(self, region: str, secrets: Mapping[str, str], expired: Collection[str]) -> None:
        self._region = region
        self._secrets = secrets
        self._expired = expired

    def check(self, call: BucketCall) -> None:
        """Raises `S3Error` unless the call was signed by somebody who is known, and lately."""
        if "authorization" in call.headers:
            signature = self._in_header(call)
            self._check_time(signature.time)
        elif "X-Amz-Signature" in call.query:
            signature = self._in_query(call)
        else:
            raise access_denied()
        access_key, date, region, *service = signature.credential.split("/")
        if service != ["s3", "aws4_request"] or not signature.time.startswith(date):
            raise _malformed(
                'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'
            )
        if access_key not in self._secrets:
            message = "The AWS Access Key Id you provided does not exist in our records."
            raise S3Error(403, "InvalidAccessKeyId", message, AWSAccessKeyId=access_key)
        if region != self._region:
            message = f"the region '{region}' is wrong; expecting '{self._region}'"
            raise _malformed(message, Region=self._region)
        if signature.token in self._expired:
            raise S3Error(400, "ExpiredToken", "The provided token has expired.")
        if not hmac.compare_digest(self._expected(call, signature), signature.value):
            message = (
                "The request signature we calculated does not match the signature you provided. Check your key and "
                "signing method."
            )
            raise S3Error(403, "SignatureDoesNotMatch", message, AWSAccessKeyId=access_key)

    def _in_header(self, call: BucketCall) -> _Signature:
        found = _HEADER.fullmatch(call.headers["authorization"])
        if found is None or found[1].count("/") != 4:
            raise _malformed("expecting Credential, SignedHeaders and Signature.")
        if "x-amz-content-sha256" not in call.headers:
            raise invalid_request("Missing required header for this request: x-amz-content-sha256")
        time, token = call.headers.get("x-amz-date", ""), call.headers.get("x-amz-security-token", "")
        return _Signature(found[1], found[2], found[3], time, token, call.headers["x-amz-content-sha256"])

    def _in_query(self, call: BucketCall) -> _Signature:
        query = {
            name: call.query.get(f"X-Amz-{name}", "") for name in ("Algorithm", "Credential", "SignedHeaders")
        }
        time, seconds = call.query.get("X-Amz-Date", ""), call.query.get("X-Amz-Expires", "")
        if query["Algorithm"] != _ALGORITHM or query["Credential"].count("/") != 4 or not seconds.isdigit():
            message = (
                "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, "
                "X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters."
            )
            raise S3Error(400, "AuthorizationQueryParametersError", message)
        if _read(time) + timedelta(seconds=int(seconds)) < datetime.now(timezone.utc):
            raise access_denied("Request has expired")
        token = call.query.get("X-Amz-Security-Token", "")
        value = call.query["X-Amz-Signature"]
        return _Signature(query["Credential"], query["SignedHeaders"], value, time, token, "UNSIGNED-PAYLOAD")

    def _check_time(self, time: str) -> None:
        if abs(datetime.now(timezone.utc) - _read(time)) > _MOST_SKEW:
            message = "The difference between the request time and the current time is too large."
            raise S3Error(403, "RequestTimeTooSkewed", message, RequestTime=time)

    def _expected(self, call: BucketCall, signature: _Signature) -> str:
        path = quote(call.path, safe=f"/{_SAFE}")
        pairs = sorted(
            (quote(name, safe=_SAFE), quote(value, safe=_SAFE))
            for name, value in call.pairs
            if name != "X-Amz-Signature"
        )
        query = "&".join(f"{name}={value}" for name, value in pairs)
        names = signature.signed_headers.split(";")
        headers = "".join(f"{name}:{' '.join(call.headers.get(name, '').split())}\n" for name in names)
        request = "\n".join([call.method, path, query, headers, signature.signed_headers, signature.payload])
        access_key, *scope = signature.credential.split("/")
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join([_ALGORITHM, signature.time, "/".join(scope), digest])
        key = f"AWS4{self._secrets[access_key]}".encode()
        for part in (*scope, text):
            key = hmac.digest(key, part.encode(), "sha256")
        return key.hex()


def _read(time: str) -> datetime:
    try:
        return datetime.strptime(time, _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise access_denied("AWS authentication requires a valid Date or x-amz-date header") from None


def _malformed(why: str, **details: str) -> S3Error:
    message = f"The authorization header is malformed; {why}"
    return S3Error(400, "AuthorizationHeaderMalformed", message, **details)
