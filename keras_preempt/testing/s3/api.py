"""The part of Amazon S3 that stores and reads objects: a request in, an answer out, without sockets and clocks.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import ClassVar

from keras_preempt.testing.buckets.calls import BucketApi
from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.faults import APPLICABLE, CONDITIONAL
from keras_preempt.testing.buckets.objects import Buckets
from keras_preempt.testing.s3 import documents
from keras_preempt.testing.s3.call import S3Call
from keras_preempt.testing.s3.errors import access_denied, error_document, not_imitated, s3_fault
from keras_preempt.testing.s3.objects import S3Objects
from keras_preempt.testing.s3.signatures import Signatures
from keras_preempt.testing.s3.uploads import MultipartUploads
from keras_preempt.testing.server import Reply


class S3Api(BucketApi[S3Call]):
    """Answers calls from what is stored, in a region."""

    applicable: ClassVar[Mapping[str, frozenset[str]]] = {
        **{category: kinds | {"expired-token"} for category, kinds in APPLICABLE.items()},
        "write": APPLICABLE["write"] | CONDITIONAL | {"expired-token"},
        "upload": APPLICABLE["upload"] | CONDITIONAL | {"expired-token"},
        "chunk": APPLICABLE["chunk"] | {"expired-token", "session-lost"},
    }

    def __init__(self, buckets: Buckets, endpoint: str, region: str, signatures: Signatures) -> None:
        self.buckets = buckets
        self.endpoint = endpoint
        self.uploads = MultipartUploads()
        self._region = region
        self._signatures = signatures
        self._objects = S3Objects(buckets, self.uploads)
        self._of_object: dict[tuple[str, frozenset[str]], Callable[[S3Call], Reply]] = {
            ("GET", frozenset()): self._objects.get,
            ("HEAD", frozenset()): self._objects.get,
            ("PUT", frozenset()): self._objects.put,
            ("DELETE", frozenset()): self._objects.delete,
            ("POST", frozenset({"uploads"})): self._objects.begin,
            ("PUT", frozenset({"partNumber", "uploadId"})): self._objects.put_part,
            ("POST", frozenset({"uploadId"})): self._objects.complete,
            ("DELETE", frozenset({"uploadId"})): self._objects.abort,
        }
        self._of_bucket: dict[tuple[str, frozenset[str]], Callable[[S3Call], Reply]] = {
            ("GET", frozenset()): self._list,
            ("GET", frozenset({"versions"})): self._list_versions,
            ("GET", frozenset({"location"})): self._location,
            ("GET", frozenset({"versioning"})): self._versioning,
            ("GET", frozenset({"uploads"})): self._list_uploads,
            ("PUT", frozenset({"versioning"})): self._set_versioning,
            ("HEAD", frozenset()): self._head_bucket,
            ("PUT", frozenset()): self._create_bucket,
            ("DELETE", frozenset()): self._delete_bucket,
            ("POST", frozenset({"delete"})): self._objects.delete_many,
        }

    def call(self, method: str, url: str, headers: Mapping[str, str]) -> S3Call:
        return S3Call(method, url, headers)

    def target(self, call: S3Call) -> str:
        return f"{call.bucket}/{call.name or call.query.get('prefix', '')}" if call.bucket else ""

    def lose_upload(self, call: S3Call) -> None:
        self.uploads.end(call.query.get("uploadId", ""))

    def _error_of(self, kind: str) -> ServiceError:
        return s3_fault(kind)

    def answer(self, call: S3Call) -> Reply:
        reply = super().answer(call)
        reply.headers.setdefault("x-amz-request-id", secrets.token_hex(8).upper())
        reply.headers.setdefault("x-amz-id-2", "FakeS3")
        return reply

    def _refusal(self, error: ServiceError, call: S3Call) -> Reply:
        if error.status == 304:
            return Reply(304, b"", dict(error.headers))
        body = b"" if call.method == "HEAD" else error_document(error, secrets.token_hex(8).upper())
        headers = {"Content-Type": "application/xml", **error.headers}
        if error.reason == "AuthorizationHeaderMalformed":
            headers["x-amz-bucket-region"] = self._region
        return Reply(error.status, body, headers)

    def _route(self, call: S3Call) -> Reply:
        if self.unauthenticated:
            raise access_denied()
        self._signatures.check(call)
        if not call.bucket:
            raise not_imitated(f"{call.method} /")
        operations = self._of_object if call.name else self._of_bucket
        operation = operations.get((call.method, call.subresources))
        if operation is None:
            raise not_imitated(f"{call.method} {call.url}")
        return operation(call)

    def _require_bucket(self, call: S3Call, operation: str) -> None:
        self.buckets.bucket(call.bucket)
        self.buckets.require(operation, "bucket")

    def _head_bucket(self, call: S3Call) -> Reply:
        self._require_bucket(call, "bucket")
        self.buckets.require("list", "bucket")  # The permission that the real service asks for.
        return Reply(200, b"", {"x-amz-bucket-region": self._region, "Content-Type": "application/xml"})

    def _location(self, call: S3Call) -> Reply:
        self._require_bucket(call, "bucket")
        return documents.document("LocationConstraint", "" if self._region == "us-east-1" else self._region)

    def _versioning(self, call: S3Call) -> Reply:
        self._require_bucket(call, "bucket")
        kept = self.buckets.bucket(call.bucket).versioned
        return documents.document("VersioningConfiguration", [("Status", "Enabled")] if kept else [])

    def _set_versioning(self, call: S3Call) -> Reply:
        self._require_bucket(call, "bucket")
        wanted = documents.parsed(call.body, "VersioningConfiguration").findtext("Status")
        self.buckets.bucket(call.bucket).versioned = wanted == "Enabled"
        return Reply()

    def _create_bucket(self, call: S3Call) -> Reply:
        self.buckets.create_bucket(call.bucket)
        return Reply(200, b"", {"Location": f"/{call.bucket}"})

    def _delete_bucket(self, call: S3Call) -> Reply:
        self.buckets.delete_bucket(call.bucket)
        return Reply(204)

    def _list(self, call: S3Call) -> Reply:
        if call.query.get("list-type") != "2":
            raise not_imitated("a listing other than ListObjectsV2")
        self._require_bucket(call, "list")
        return documents.listing(call.bucket, self.buckets, call.query)

    def _list_versions(self, call: S3Call) -> Reply:
        self._require_bucket(call, "list")
        return documents.version_listing(call.bucket, self.buckets, call.query)

    def _list_uploads(self, call: S3Call) -> Reply:
        self._require_bucket(call, "list")
        found = [
            ("Upload", [("Key", upload.name), ("UploadId", upload.id)])
            for upload in self.uploads.under_way(call.bucket)
            if upload.name.startswith(call.query.get("prefix", ""))
        ]
        fields = [("Bucket", call.bucket), ("IsTruncated", "false"), *found]
        return documents.document("ListMultipartUploadsResult", fields)
