"""Requests signed by the vendors' own code: botocore for S3, azure-storage-blob for Azure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from itertools import count
from typing import Any

from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.pipeline.transport import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.testing.buckets.cases import Answer, Step, exchange, url_of

ACCOUNT, ACCOUNT_KEY = "fakeaccount", "ZmFrZWZha2VmYWtlZmFrZWZha2VmYWtl"
ACCESS_KEY, SECRET, REGION = "AKIAFAKEFAKEFAKEFAKE", "fake/secret/fake/secret/fake/secret/fake", "us-east-1"
AZURE_VERSION = "2021-12-02"

_numbers = count()


class _Signer(S3SigV4Auth):  # type: ignore[misc]
    """Signs what a request says of its payload, if it says anything."""

    def payload(self, request: AWSRequest) -> str:
        return str(request.context.get("payload") or super().payload(request))


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body


def s3_sender(endpoint: str) -> Callable[[Step], Answer]:
    """Sends steps to a bucket of their own, which is there already."""
    bucket = f"bucket-{next(_numbers)}"

    def send(step: Step) -> Answer:
        body = _bytes(step.body)
        access_key = "AKIAUNKNOWN" if step.as_whom == "unknown" else ACCESS_KEY
        secret = "other" if step.as_whom == "forger" else SECRET
        token = "expired" if step.as_whom == "late" else None
        region = "eu-west-1" if step.as_whom == "elsewhere" else REGION
        request = AWSRequest(step.method, url_of(endpoint, bucket, step), dict(step.headers), body)
        if step.as_whom != "nobody":
            request.context["payload"] = step.headers.get("x-amz-content-sha256")
            _Signer(Credentials(access_key, secret, token), "s3", region).add_auth(request)
        return exchange(step.method, request.url, dict(request.headers.items()), body)

    assert send(Step("PUT", None)).status == 200
    return send


def azure_sender(endpoint: str) -> Callable[[Step], Answer]:
    """Sends steps to a container of their own, which is there already."""
    container = f"container-{next(_numbers)}"

    def send(step: Step) -> Answer:
        body = _bytes(step.body)
        url = url_of(endpoint, container, step)
        hours = -2 if step.as_whom == "late" else 0
        date = format_datetime(datetime.now(timezone.utc) + timedelta(hours=hours), usegmt=True)
        headers = {"x-ms-version": AZURE_VERSION, "x-ms-date": date, "Content-Length": str(len(body))}
        request = HttpRequest(step.method, url, headers={**headers, **step.headers})
        key = ACCOUNT_KEY[::-1] if step.as_whom == "forger" else ACCOUNT_KEY
        account = "otheraccount" if step.as_whom == "unknown" else ACCOUNT
        if step.as_whom == "bearer":
            request.headers["Authorization"] = "Bearer token"
        elif step.as_whom != "nobody":
            policy: Any = SharedKeyCredentialPolicy(account, key)
            signed: Any = PipelineRequest(request, PipelineContext(None))
            policy.on_request(signed)
        return exchange(step.method, url, dict(request.headers.items()), body)

    assert send(Step("PUT", None, {"restype": "container"})).status == 201
    return send
