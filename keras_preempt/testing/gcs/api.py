"""The part of Google Cloud Storage's JSON API that stores and reads objects: a request in, an answer out.

There are no sockets and no clocks here. Source: https://cloud.google.com/storage/docs/json_api/v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from keras_preempt.testing.buckets.calls import BucketApi, BucketCall
from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.faults import APPLICABLE
from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.objects import GcsBuckets, Preconditions, json_resource, number_in
from keras_preempt.testing.gcs.reads import download, listing_page
from keras_preempt.testing.gcs.uploads import (
    UploadSession,
    UploadSessions,
    checksums,
    parse_multipart,
    parse_resource,
)
from keras_preempt.testing.server import Reply

_PATH = re.compile(
    r"(/upload|/download)?/storage/v1/b(?:/([^/]+)(?:/(o|iam/testPermissions)(?:/([^/]+))?)?)?"
)
_COPY = re.compile(r"(/storage/v1/b/[^/]+/o/[^/]+)/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")


@dataclass
class ApiCall(BucketCall):
    """A request to the JSON API."""

    def __post_init__(self) -> None:
        path = urlsplit(self.url).path
        copy = _COPY.fullmatch(path)
        self.copy_target = (unquote(copy[3]), unquote(copy[4])) if copy else None
        self.rewrites = copy is not None and copy[2] == "rewriteTo"
        found = _PATH.fullmatch(copy[1] if copy else path)
        self.known = found is not None
        groups = found.groups(default="") if found else ("", "", "", "")
        self.path_prefix, self.collection = groups[0], groups[2]
        self.bucket, self.name = unquote(groups[1]), unquote(groups[3])

    @property
    def named_by_head(self) -> bool:
        return self.category == "chunk"  # Others have the name in their bodies.

    @property
    def keeps_pieces(self) -> bool:
        return self.category == "chunk"

    def content_middle(self) -> int:
        if self.query.get("uploadType") != "multipart":
            return len(self.body) // 2
        # Within the content, whatever is wrapped around it.
        start = self.body.find(b"\r\n\r\n", self.body.find(b"\r\n\r\n") + 4) + 4
        return (start + self.body.rfind(b"\r\n--")) // 2

    @property
    def category(self) -> str:
        if self.method == "GET":
            if self.collection != "o":
                return "bucket"
            return "media" if self.query.get("alt") == "media" else "read"
        if self.path_prefix != "/upload":
            return "write"
        if self.method == "PUT":
            return "chunk"
        return "write" if self.query.get("uploadType") == "resumable" else "upload"


class Api(BucketApi[ApiCall]):
    """Answers calls from what is stored, with 401 while `unauthenticated`."""

    applicable: ClassVar[Mapping[str, frozenset[str]]] = {
        **APPLICABLE,
        "chunk": APPLICABLE["chunk"] | {"session-lost"},
    }

    def __init__(self, buckets: GcsBuckets, endpoint: str) -> None:
        self.buckets = buckets
        self.sessions = UploadSessions()  # Those under way.
        self.endpoint = endpoint  # As its clients know it.

    def call(self, method: str, url: str, headers: Mapping[str, str]) -> ApiCall:
        return ApiCall(method, url, headers)

    def lose_upload(self, call: ApiCall) -> None:
        self.sessions.lose(call.query.get("upload_id", ""))

    def _error_of(self, kind: str) -> ServiceError:
        return errors.plain_error(int(kind))

    def _refusal(self, error: ServiceError, call: ApiCall) -> Reply:
        return errors.reply_of(error, media=call.category == "media")

    def target(self, call: ApiCall) -> str:
        """From its path, query, upload session or resource."""
        name = call.name or call.query.get("name") or call.query.get("prefix") or ""
        try:
            if call.category == "chunk":
                name = self.sessions[call.query.get("upload_id", "")].name
            elif call.path_prefix == "/upload" and call.whole and not name:
                name = str(self._announced(call)[0].get("name") or "")
        except errors.GcsError:
            pass  # The answer to the call will say so.
        return f"{call.bucket}/{name}" if call.bucket else ""

    def _route(self, call: ApiCall) -> Reply:
        if self.unauthenticated:
            raise errors.plain_error(401, {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'})
        if not call.known:
            raise errors.not_built(f"{call.method} {call.path}")
        if call.copy_target is not None:
            return self._copy(call, *call.copy_target)
        match (call.path_prefix, call.method, call.collection, bool(call.name)):
            case ("/upload", "POST", "o", False):
                return self._upload(call)
            case ("/upload", "PUT", "o", False):
                session = self.sessions[call.query.get("upload_id", "")]
                stored = session.receive(self.buckets, call.headers, call.body, whole=call.whole)
                if stored is not None:
                    return self._object(stored)
                # How much is kept; without a Range header if nothing is.
                headers = {"Range": f"bytes=0-{session.size - 1}"} if session.size else {}
                headers["X-GUploader-UploadID"] = session.id
                if (
                    "x-guploader-no-308" in call.headers
                ):  # The client's library takes every 308 for a redirection.
                    return Reply(200, b"", {**headers, "X-HTTP-Status-Code-Override": "308"})
                return Reply(308, b"", headers)
            case ("/upload", "DELETE", "o", False):
                self.sessions.lose(self.sessions[call.query.get("upload_id", "")].id)
                return Reply(499)
            case ("" | "/download", "GET", "o", True):
                found = self.buckets.get(call.bucket, call.name, call.query)
                if call.category != "media":
                    return self._object(json_resource(found))
                return download(found, call.headers)
            case ("", "DELETE", "o", True):
                self.buckets.remove(call.bucket, call.name, call.query)
                return Reply(204)
            case ("", "PATCH", "o", True):
                changes = parse_resource(call.body)
                updated = self.buckets.update(call.bucket, call.name, call.query, changes)
                return self._object(json_resource(updated))
            case ("", "GET", "o", False):
                objects = self.buckets.objects(call.bucket)
                self.buckets.require("list", "bucket")
                return Reply.of(listing_page(objects, call.query))
            case ("", "GET", "", _) if call.bucket:
                bucket = self.buckets.bucket(call.bucket)
                self.buckets.require("bucket", "bucket")
                return Reply.of(self.buckets.bucket_resource(bucket))
            case ("", "DELETE", "", _) if call.bucket:
                self.buckets.delete_bucket(call.bucket)
                return Reply(204)
            case ("", "POST", "", _) if not call.bucket:
                created = self.buckets.create_bucket(str(parse_resource(call.body).get("name")))
                return Reply.of(self.buckets.bucket_resource(created))
            case ("", "GET", "iam/testPermissions", _):
                wanted = [value for name, value in call.pairs if name == "permissions"]
                granted = self.buckets.granted(call.bucket, wanted)
                return Reply.of({"kind": "storage#testIamPermissionsResponse", "permissions": granted})
        raise errors.not_built(f"{call.method} {call.path}")

    def _copy(self, call: ApiCall, bucket: str, name: str) -> Reply:
        """A copy within the service, done at once; `call` names the source, and may name its generation."""
        if call.method != "POST":
            raise errors.not_built(f"{call.method} {call.path}")
        pinned = call.query.get("sourceGeneration")
        source = self.buckets.get(call.bucket, call.name, {} if pinned is None else {"generation": pinned})
        Preconditions.of(call.query, "ifSource").check(source)
        fields = {**source.fields, **parse_resource(call.body)}
        copy = self.buckets.upload(bucket, name, source.content, fields, Preconditions.of(call.query))
        if not call.rewrites:
            return self._object(json_resource(copy))
        size = str(len(source.content))
        sizes = {"totalBytesRewritten": size, "objectSize": size}
        return Reply.of(
            {"kind": "storage#rewriteResponse", **sizes, "done": True, "resource": json_resource(copy)}
        )

    def _object(self, resource: dict[str, Any]) -> Reply:
        place = f"/storage/v1/b/{quote(resource['bucket'], safe='')}/o/{quote(resource['name'], safe='')}"
        media = f"{self.endpoint}/download{place}?generation={resource['generation']}&alt=media"
        return Reply.of({**resource, "selfLink": f"{self.endpoint}{place}", "mediaLink": media})

    def _announced(self, call: ApiCall) -> tuple[dict[str, Any], bytes]:
        """The resource that an upload begins with, and its content."""
        content_type = call.headers.get("content-type", "")
        match call.query.get("uploadType"):
            case "multipart":
                return parse_multipart(content_type, call.body)
            case "resumable":
                fields = parse_resource(call.body)
                if "x-upload-content-type" in call.headers:
                    fields.setdefault("contentType", call.headers["x-upload-content-type"])
                return fields, b""
            case "media":
                return {"contentType": content_type} if content_type else {}, call.body
        raise errors.invalid("Expected uploadType to be multipart, resumable or media.")

    def _upload(self, call: ApiCall) -> Reply:
        fields, content = self._announced(call)
        name = str(call.query.get("name") or fields.get("name") or "")
        conditions = Preconditions.of(call.query)
        if call.query["uploadType"] != "resumable":
            fields = {**fields, **checksums(call.headers)}
            stored = self.buckets.upload(call.bucket, name, content, fields, conditions)
            return self._object(json_resource(stored))
        self.buckets.check_insert(call.bucket, name, conditions.check)
        total = number_in(call.headers, "x-upload-content-length")
        session = UploadSession(call.bucket, name, fields, conditions, total)
        self.sessions[session.id] = session
        place = f"{self.endpoint}/upload/storage/v1/b/{quote(call.bucket, safe='')}/o?uploadType=resumable"
        where = f"{place}&name={quote(name, safe='')}&upload_id={session.id}"
        return Reply(200, b"", {"Location": where, "X-GUploader-UploadID": session.id})
