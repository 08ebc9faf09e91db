"""The part of Azure Blob Storage that stores and reads block blobs: a request in, an answer out.

There are no sockets here. Source: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import ClassVar

from keras_preempt.testing.azure.access import Access
from keras_preempt.testing.azure.batches import answer_batch
from keras_preempt.testing.azure.blobs import Blobs
from keras_preempt.testing.azure.call import AzureCall
from keras_preempt.testing.azure.documents import blob_listing, http_time
from keras_preempt.testing.azure.errors import (
    AzureError,
    authentication_failed,
    azure_fault,
    error_reply,
    no_credentials,
    not_answered,
    token_expired,
)
from keras_preempt.testing.buckets.calls import BucketApi
from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.faults import APPLICABLE, CONDITIONAL
from keras_preempt.testing.buckets.objects import Buckets
from keras_preempt.testing.server import Reply

_CONTAINER_NAME = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*|\$(root|logs|web)")

Operation = Callable[[AzureCall], Reply]


class AzureApi(BucketApi[AzureCall]):
    """Answers calls from what is stored, in one account."""

    applicable: ClassVar[Mapping[str, frozenset[str]]] = {
        **{category: kinds | {"expired-token"} for category, kinds in APPLICABLE.items()},
        "write": APPLICABLE["write"] | CONDITIONAL | {"expired-token"},
        "upload": APPLICABLE["upload"] | CONDITIONAL | {"expired-token"},
        "chunk": APPLICABLE["chunk"] | {"expired-token", "session-lost"},
    }

    def __init__(self, buckets: Buckets, endpoint: str, access: Access) -> None:
        self.buckets = buckets
        self.endpoint = endpoint
        self._access = access
        blobs = Blobs(buckets)
        self._of_blob: dict[tuple[str, str], Operation] = {
            ("PUT", ""): blobs.put,
            ("PUT", "block"): blobs.put_block,
            ("PUT", "blocklist"): blobs.put_block_list,
            ("PUT", "metadata"): blobs.set_metadata,
            ("GET", ""): blobs.get,
            ("GET", "metadata"): blobs.get,
            ("HEAD", ""): blobs.get,
            ("DELETE", ""): blobs.delete,
        }
        self._of_container: dict[tuple[str, str], Operation] = {
            ("PUT", ""): self._create,
            ("GET", ""): self._properties,
            ("HEAD", ""): self._properties,
            ("DELETE", ""): self._delete,
            ("GET", "list"): self._list,
            ("POST", "batch"): self._batch,
        }

    def call(self, method: str, url: str, headers: Mapping[str, str]) -> AzureCall:
        return AzureCall(method, url, headers)

    def target(self, call: AzureCall) -> str:
        return f"{call.bucket}/{call.name or call.query.get('prefix', '')}" if call.bucket else ""

    def lose_upload(self, call: AzureCall) -> None:
        call.lost = True

    def answer(self, call: AzureCall) -> Reply:
        reply = super().answer(call)
        reply.headers.setdefault("x-ms-request-id", secrets.token_hex(16))
        reply.headers.setdefault("x-ms-version", call.headers.get("x-ms-version", "2021-12-02"))
        if "x-ms-client-request-id" in call.headers:
            reply.headers["x-ms-client-request-id"] = call.headers["x-ms-client-request-id"]
        return reply

    def fault(self, call: AzureCall, kind: str, retry_after: int) -> Reply:
        if kind != "expired-token":
            return super().fault(call, kind, retry_after)
        bearer = call.headers.get("authorization", "").lower().startswith("bearer ")
        expired = (
            token_expired()
            if bearer
            else authentication_failed("Signature not valid in the specified time frame")
        )
        return self._refusal(expired, call)

    def _error_of(self, kind: str) -> ServiceError:
        return azure_fault(kind)

    def _refusal(self, error: ServiceError, call: AzureCall) -> Reply:
        reply = error_reply(error)
        if call.method == "HEAD":
            reply.body = b""
        return reply

    def _route(self, call: AzureCall) -> Reply:
        if self.unauthenticated:
            raise no_credentials()
        self._access.check(call)
        if not call.bucket:
            return self._account(call)
        if not _CONTAINER_NAME.fullmatch(call.bucket):
            message = "The specifed resource name contains invalid characters."
            raise AzureError(400, "InvalidResourceName", message)
        operations = self._of_blob if call.name else self._of_container
        operation = operations.get((call.method, call.component))
        if operation is None or (call.resource == "container") == bool(call.name):
            raise not_answered(f"{call.method} {call.url}")
        return operation(call)

    def _account(self, call: AzureCall) -> Reply:
        match (call.method, call.component, call.resource):
            case ("GET" | "HEAD", "properties", "account"):
                kind = {"x-ms-sku-name": "Standard_LRS", "x-ms-account-kind": "StorageV2"}
                return Reply(200, b"", {**kind, "x-ms-is-hns-enabled": "false"})
            case ("POST", "batch", _):
                return self._batch(call)
        raise not_answered(f"{call.method} {call.url}")

    def _create(self, call: AzureCall) -> Reply:
        created = http_time(self.buckets.create_bucket(call.bucket).created)
        return Reply(201, b"", {"ETag": '"0x8D0"', "Last-Modified": created})

    def _properties(self, call: AzureCall) -> Reply:
        bucket = self.buckets.bucket(call.bucket)
        self.buckets.require("bucket", "container")
        locked = str("retention" in self.buckets.policies).lower()
        headers = {
            "ETag": '"0x8D0"',
            "Last-Modified": http_time(bucket.created),
            "x-ms-lease-status": "unlocked",
            "x-ms-lease-state": "available",
            "x-ms-has-immutability-policy": locked,
            "x-ms-has-legal-hold": "false",
        }
        return Reply(200, b"", headers)

    def _delete(self, call: AzureCall) -> Reply:
        self.buckets.delete_bucket(call.bucket, with_objects=True)
        return Reply(202)

    def _list(self, call: AzureCall) -> Reply:
        self.buckets.bucket(call.bucket)
        self.buckets.require("list", "container")
        return blob_listing(self.endpoint, call.bucket, self.buckets, call.query)

    def _batch(self, call: AzureCall) -> Reply:
        if call.bucket:
            self.buckets.bucket(call.bucket)
        return answer_batch(call, self.answer)
