"""The operations of S3 on objects."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.objects import Buckets, Check, ObjectBytes, StoredObject, no_condition
from keras_preempt.testing.buckets.reads import wanted_range
from keras_preempt.testing.s3.bodies import SUMS, content_and_sums
from keras_preempt.testing.s3.call import S3Call
from keras_preempt.testing.s3.documents import LARGEST_PAGE, document, parsed, s3_etag, s3_version
from keras_preempt.testing.s3.errors import (
    S3Error,
    invalid_request,
    malformed_xml,
    not_imitated,
    precondition_failed,
)
from keras_preempt.testing.s3.uploads import MultipartUpload, MultipartUploads
from keras_preempt.testing.server import Reply

_KEPT_HEADERS = (
    *(
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    ),
    *("x-amz-storage-class", "x-amz-website-redirect-location"),
)
_ENCRYPTED = {"x-amz-server-side-encryption": "AES256"}  # By default, all that is stored since 2023.
_META = "x-amz-meta-"
_SUM_HEADERS = frozenset(f"x-amz-checksum-{name}" for name in SUMS)
_MOST_METADATA = 2048  # bytes


class S3Objects:
    """Puts, reads and deletes objects of `buckets`, and the parts of `uploads`."""

    def __init__(self, buckets: Buckets, uploads: MultipartUploads) -> None:
        self._buckets = buckets
        self._uploads = uploads

    def put(self, call: S3Call) -> Reply:
        self._refuse_copies_and_streams(call)
        self._buckets.bucket(call.bucket)
        content, sums = content_and_sums(call.headers, call.body)
        fields = {**_fields(call.headers), "sums": sums}
        check = _write_check(call.headers, call.name)
        stored = self._buckets.insert(call.bucket, call.name, ObjectBytes(content), fields, check)
        headers = {"ETag": s3_etag(stored), **_sum_headers(sums), **_ENCRYPTED, **_version_header(stored)}
        return Reply(200, b"", headers)

    def get(self, call: S3Call) -> Reply:
        stored = self._found(call)
        headers = {
            "Content-Type": "binary/octet-stream",
            **{name.title(): value for name, value in stored.fields.get("headers", {}).items()},
            **{f"{_META}{name}": value for name, value in stored.metadata.items()},
            "Accept-Ranges": "bytes",
            "ETag": s3_etag(stored),
            "Last-Modified": format_datetime(stored.created, usegmt=True),
            **_ENCRYPTED,
            **_version_header(stored),
        }
        _check_reading(stored, call.headers, headers)
        size = len(stored.content)
        try:
            wanted = wanted_range(call.headers.get("range", ""), size)
        except ValueError as error:
            details = {"RangeRequested": call.headers["range"], "ActualObjectSize": str(size)}
            message = "The requested range is not satisfiable"
            raise S3Error(416, "InvalidRange", message, {"Content-Range": str(error)}, **details) from None
        if wanted is not None:
            start, end = wanted
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            return Reply(206, stored.content[start:end], headers)
        if call.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers.update(_sum_headers(stored.fields.get("sums", {})))
        return Reply(200, stored.content, headers)

    def delete(self, call: S3Call) -> Reply:
        condition = call.headers.get("if-match")
        headers = self._delete(call.bucket, call.name, call.query.get("versionId"), condition)
        return Reply(204, b"", headers)

    def _delete(self, bucket: str, name: str, version: str | None, condition: str | None) -> dict[str, str]:
        """Deletes an object, if the ETag of a condition is its own; returns headers that say what became of it."""
        buckets = self._buckets
        buckets.bucket(bucket)
        buckets.require("delete")
        if version is not None:
            buckets.require("delete-version")
            told = {"x-amz-version-id": version}
            for kept in buckets.history(bucket, name):
                if s3_version(kept) == version:
                    buckets.delete_version(bucket, name, kept.generation)
                    return {**told, "x-amz-delete-marker": "true"} if kept.deleted else told
            return told  # As if it had been there.
        check = no_condition if condition is None else _match_check(condition, name)
        if buckets.bucket(bucket).versioned:
            mark = buckets.mark_deleted(bucket, name, check)
            return {"x-amz-delete-marker": "true", **_version_header(mark)}
        try:
            buckets.delete(bucket, name, check)
        except ServiceError as error:
            if error.reason != "NoSuchKey" or condition is not None:
                raise
        return {}

    def delete_many(self, call: S3Call) -> Reply:
        self._buckets.bucket(call.bucket)
        if not any(name in ("content-md5", "x-amz-trailer") or name in _SUM_HEADERS for name in call.headers):
            raise invalid_request("Missing required header for this request: Content-MD5 OR x-amz-checksum-*")
        body, _ = content_and_sums(call.headers, call.body)
        wanted = parsed(body, "Delete")
        names = [(each.findtext("Key", ""), each.findtext("VersionId")) for each in wanted.iter("Object")]
        if not names or len(names) > LARGEST_PAGE or not all(name for name, _ in names):
            raise malformed_xml()
        fields: list[tuple[str, object]] = []
        for name, version in names:
            told: list[tuple[str, object]] = [("Key", name)]
            if version is not None:
                told.append(("VersionId", version))
            try:
                headers = self._delete(call.bucket, name, version, None)
            except ServiceError as error:
                fields.append(("Error", [*told, ("Code", error.reason), ("Message", error.message)]))
                continue
            if "x-amz-delete-marker" in headers:
                marker = headers["x-amz-version-id"]
                told += [("DeleteMarker", "true"), ("DeleteMarkerVersionId", marker)]
            if wanted.findtext("Quiet") != "true":
                fields.append(("Deleted", told))
        return document("DeleteResult", fields)

    def begin(self, call: S3Call) -> Reply:
        self._buckets.check_insert(call.bucket, call.name, no_condition)
        upload = self._uploads.begin(MultipartUpload(call.bucket, call.name, _fields(call.headers)))
        names = [("Bucket", call.bucket), ("Key", call.name), ("UploadId", upload.id)]
        reply = document("InitiateMultipartUploadResult", names)
        reply.headers.update(_ENCRYPTED)
        return reply

    def put_part(self, call: S3Call) -> Reply:
        self._refuse_copies_and_streams(call)
        self._buckets.bucket(call.bucket)
        self._buckets.require("create")
        upload = self._upload(call)
        content, sums = content_and_sums(call.headers, call.body)
        etag = upload.add(call.query["partNumber"], content)
        return Reply(200, b"", {"ETag": etag, **_sum_headers(sums), **_ENCRYPTED})

    def complete(self, call: S3Call) -> Reply:
        self._buckets.bucket(call.bucket)
        upload = self._upload(call)
        content, etag = upload.assembled(parsed(call.body, "CompleteMultipartUpload"))
        fields = {**upload.fields, "etag": etag}
        check = _write_check(call.headers, call.name)
        stored = self._buckets.insert(call.bucket, call.name, ObjectBytes(content), fields, check)
        self._uploads.end(upload.id)
        location = f"/{quote(call.bucket)}/{quote(call.name)}"
        names = [("Location", location), ("Bucket", call.bucket), ("Key", call.name), ("ETag", etag)]
        reply = document("CompleteMultipartUploadResult", names)
        reply.headers.update({**_ENCRYPTED, **_version_header(stored)})
        return reply

    def abort(self, call: S3Call) -> Reply:
        self._buckets.bucket(call.bucket)
        self._uploads.end(self._upload(call).id)
        return Reply(204)

    def _upload(self, call: S3Call) -> MultipartUpload:
        return self._uploads.find(call.bucket, call.name, call.query["uploadId"])

    def _found(self, call: S3Call) -> StoredObject:
        """The object, or the version of it, that is asked for."""
        version = call.query.get("versionId")
        kept = self._buckets.history(call.bucket, call.name)
        if version is None:
            if kept and kept[-1].deleted:
                headers = {"x-amz-delete-marker": "true", **_version_header(kept[-1])}
                raise S3Error(404, "NoSuchKey", "The specified key does not exist.", headers, Key=call.name)
            return self._buckets.find(call.bucket, call.name, "get")
        found = next((each for each in kept if s3_version(each) == version), None)
        if found is None:
            message = "The specified version does not exist."
            raise S3Error(404, "NoSuchVersion", message, Key=call.name, VersionId=version)
        if found.deleted:
            headers = {"x-amz-delete-marker": "true", **_version_header(found), "Allow": "DELETE"}
            message = "The specified method is not allowed against this resource."
            raise S3Error(405, "MethodNotAllowed", message, headers, Method=call.method)
        return self._buckets.find(call.bucket, call.name, "get", found.generation)

    @staticmethod
    def _refuse_copies_and_streams(call: S3Call) -> None:
        if "x-amz-copy-source" in call.headers:
            raise not_imitated("a copy")
        if "transfer-encoding" in call.headers and "x-amz-decoded-content-length" not in call.headers:
            message = "A header you provided implies functionality that is not implemented"
            raise S3Error(501, "NotImplemented", message, Header="Transfer-Encoding")


def _fields(headers: Mapping[str, str]) -> dict[str, Any]:
    """What an upload's headers say of its object."""
    kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    # The coding of the request alone is not the object's.
    codings = [each.strip() for each in kept.pop("content-encoding", "").split(",")]
    if codings := [each for each in codings if each not in ("", "aws-chunked")]:
        kept["content-encoding"] = ",".join(codings)
    metadata = {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}
    if (size := sum(len(name) + len(value) for name, value in metadata.items())) > _MOST_METADATA:
        sizes = {"MaxSizeAllowed": str(_MOST_METADATA), "Size": str(size)}
        message = "Your metadata headers exceed the maximum allowed metadata size"
        raise S3Error(400, "MetadataTooLarge", message, **sizes)
    return {"headers": kept, "metadata": metadata}


def _sum_headers(sums: Mapping[str, str]) -> dict[str, str]:
    headers = {f"x-amz-checksum-{name}": value for name, value in sums.items()}
    return {**headers, "x-amz-checksum-type": "FULL_OBJECT"} if headers else {}


def _version_header(stored: StoredObject) -> dict[str, str]:
    return {"x-amz-version-id": s3_version(stored)} if stored.versioned else {}


def _write_check(headers: Mapping[str, str], name: str) -> Check:
    """The preconditions of a write: that there is no object, or one with an ETag."""
    none, match = headers.get("if-none-match"), headers.get("if-match")
    if none not in (None, "*") or (none and match):
        message = "A header you provided implies functionality that is not implemented"
        raise S3Error(501, "NotImplemented", message, Header="If-None-Match")
    if none:
        return _none_check
    return no_condition if match is None else _match_check(match, name)


def _none_check(found: StoredObject | None) -> None:
    if found is not None:
        raise precondition_failed("If-None-Match")


def _match_check(etag: str, name: str) -> Check:
    def check(found: StoredObject | None) -> None:
        if found is None:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist.", Key=name)
        if not _matches(etag, found):
            raise precondition_failed("If-Match")

    return check


def _matches(etags: str, stored: StoredObject) -> bool:
    own = s3_etag(stored)
    return any(each.strip() in ("*", own, own.strip('"')) for each in etags.split(","))


def _check_reading(stored: StoredObject, headers: Mapping[str, str], reply: Mapping[str, str]) -> None:
    """Raises 412, or 304 with some headers of the reply, unless the preconditions of a read hold."""
    since, until = headers.get("if-modified-since"), headers.get("if-unmodified-since")
    if "if-match" in headers:
        if not _matches(headers["if-match"], stored):
            raise precondition_failed("If-Match")
    elif until is not None and _newer(stored, until):
        raise precondition_failed("If-Unmodified-Since")
    unchanged = (
        _matches(headers["if-none-match"], stored)
        if "if-none-match" in headers
        else since is not None and not _newer(stored, since)
    )
    if unchanged:
        told = {name: reply[name] for name in ("ETag", "Last-Modified", "x-amz-version-id") if name in reply}
        raise S3Error(304, "NotModified", "Not Modified", told)


def _newer(stored: StoredObject, time: str) -> bool:
    try:
        return stored.created.replace(microsecond=0) > parsedate_to_datetime(time)
    except (TypeError, ValueError):  # Not a time, which is as if it were not there.
        return False
