"""The operations of Azure on blobs, all of them block blobs.

Source: https://learn.microsoft.com/rest/api/storageservices/operations-on-blobs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any

from keras_preempt.testing.azure.call import AzureCall
from keras_preempt.testing.azure.documents import (
    WRITERS_HEADERS,
    blob_etag,
    blob_headers,
    blob_version,
    block_list,
    http_time,
)
from keras_preempt.testing.azure.errors import (
    AzureError,
    bad_header,
    bad_parameter,
    blob_exists,
    condition_unmet,
    not_answered,
)
from keras_preempt.testing.buckets.crc64 import crc64
from keras_preempt.testing.buckets.objects import Buckets, Check, ObjectBytes, StoredObject
from keras_preempt.testing.buckets.reads import wanted_range
from keras_preempt.testing.server import Reply

_META = "x-ms-meta-"
_METADATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_METADATA = 8 << 10  # bytes
_LARGEST_HASHED_RANGE = 4 << 20  # bytes
_LONGEST_BLOCK_ID = 64  # bytes
_ENCRYPTED = {"x-ms-request-server-encrypted": "true"}

Blocks = dict[str, bytes]


class Blobs:
    """Puts, reads and deletes blobs of `buckets`, and keeps the blocks that are not part of one yet."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._lock = Lock()
        self._blocks: dict[tuple[str, str], Blocks] = {}

    def put(self, call: AzureCall) -> Reply:
        kind = call.headers.get("x-ms-blob-type", "")
        if "x-ms-copy-source" in call.headers:
            raise not_answered("a copy")
        if not kind:
            message = "An HTTP header that's mandatory for this request is not specified."
            raise AzureError(400, "MissingRequiredHeader", message, HeaderName="x-ms-blob-type")
        if kind in ("AppendBlob", "PageBlob"):
            raise not_answered(f"a blob of type {kind}")
        if kind != "BlockBlob":
            raise bad_header("x-ms-blob-type", kind)
        content = ObjectBytes(call.body)
        _check_sums(call.headers, content)
        fields = _fields(call.headers)
        given = call.headers.get("x-ms-blob-content-md5")
        own = base64.b64encode(content.md5).decode()
        if given not in (None, own):
            raise _md5_mismatch(given, own)
        fields["headers"]["Content-MD5"] = own
        stored = self._insert(call, content, fields)
        return Reply(201, b"", {"Content-MD5": own, **_told_of(stored), **_ENCRYPTED})

    def _insert(self, call: AzureCall, content: ObjectBytes, fields: Mapping[str, Any]) -> StoredObject:
        stored = self._buckets.insert(call.bucket, call.name, content, fields, _write_check(call.headers))
        with self._lock:
            self._blocks.pop((call.bucket, call.name), None)
        return stored

    def put_block(self, call: AzureCall) -> Reply:
        self._buckets.bucket(call.bucket)
        self._buckets.require("create")
        block_id = call.query.get("blockid", "")
        try:
            raw = base64.b64decode(block_id, validate=True)
        except (binascii.Error, ValueError):
            raise bad_parameter("blockid", block_id) from None
        if not 0 < len(raw) <= _LONGEST_BLOCK_ID:
            raise bad_parameter("blockid", block_id)
        content = ObjectBytes(call.body)
        if not call.body:
            raise bad_header("Content-Length", "0")
        _check_sums(call.headers, content)
        with self._lock:
            blocks = self._blocks.setdefault((call.bucket, call.name), {})
            if any(len(each) != len(block_id) for each in blocks):
                raise AzureError(400, "InvalidBlobOrBlock", "The specified blob or block content is invalid.")
            if call.lost:
                blocks.clear()
            else:
                blocks[block_id] = call.body
        return Reply(201, b"", {"Content-MD5": base64.b64encode(content.md5).decode(), **_ENCRYPTED})

    def put_block_list(self, call: AzureCall) -> Reply:
        self._buckets.bucket(call.bucket)
        _check_sums(call.headers, ObjectBytes(call.body))
        found = self._buckets.objects(call.bucket).get(call.name)
        committed: Blocks = dict(found.fields.get("blocks", {})) if found else {}
        with self._lock:
            fresh = dict(self._blocks.get((call.bucket, call.name), {}))
        places = {"Committed": committed, "Uncommitted": fresh, "Latest": {**committed, **fresh}}
        chosen = [(name, places[tag].get(name)) for tag, name in block_list(call.body)]
        content = ObjectBytes(b"".join(_whole(data) for _, data in chosen))
        fields = {**_fields(call.headers), "blocks": dict(chosen)}
        if "x-ms-blob-content-md5" in call.headers:  # Kept as it is, and not checked.
            fields["headers"]["Content-MD5"] = call.headers["x-ms-blob-content-md5"]
        stored = self._insert(call, content, fields)
        own = base64.b64encode(hashlib.md5(call.body, usedforsecurity=False).digest()).decode()
        return Reply(201, b"", {"Content-MD5": own, **_told_of(stored), **_ENCRYPTED})

    def get(self, call: AzureCall) -> Reply:
        stored = self._buckets.find(call.bucket, call.name, "get", self._generation(call))
        headers = {
            **blob_headers(stored),
            **_told_of(stored),
            **{f"{_META}{name}": value for name, value in stored.metadata.items()},
            "Accept-Ranges": "bytes",
            "x-ms-blob-type": "BlockBlob",
            "x-ms-creation-time": http_time(stored.created),
            "x-ms-lease-state": "available",
            "x-ms-lease-status": "unlocked",
            "x-ms-server-encrypted": "true",
        }
        _check_reading(stored, call.headers, headers)
        if call.method == "HEAD":
            tier = stored.fields.get("tier")
            headers.update(
                {"x-ms-access-tier": tier or "Hot", **({} if tier else {"x-ms-access-tier-inferred": "true"})}
            )
            return Reply(200, stored.content, headers)
        header = call.headers.get("x-ms-range") or call.headers.get("range", "")
        size = len(stored.content)
        try:
            wanted = None if header.startswith("bytes=-") else wanted_range(header, size)
        except ValueError as error:
            message = "The range specified is invalid for the current size of the resource."
            raise AzureError(416, "InvalidRange", message, {"Content-Range": str(error)}) from None
        if wanted is None:
            return Reply(200, stored.content, headers)
        start, end = wanted
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        if whole := headers.pop("Content-MD5", None):
            headers["x-ms-blob-content-md5"] = whole
        piece = stored.content[start:end]
        if call.headers.get("x-ms-range-get-content-md5", "").lower() == "true":
            if len(piece) > _LARGEST_HASHED_RANGE:
                raise bad_header("x-ms-range-get-content-md5", "true")
            headers["Content-MD5"] = base64.b64encode(ObjectBytes(piece).md5).decode()
        return Reply(206, piece, headers)

    def set_metadata(self, call: AzureCall) -> Reply:
        metadata = _fields(call.headers)["metadata"]
        check = _write_check(call.headers)
        changed = self._buckets.change(
            call.bucket, call.name, check, lambda found: {**found.fields, "metadata": metadata}
        )
        return Reply(200, b"", {**_told_of(changed), **_ENCRYPTED})

    def delete(self, call: AzureCall) -> Reply:
        generation = self._generation(call)
        if generation is None:
            self._buckets.delete(call.bucket, call.name, _write_check(call.headers))
        else:
            self._buckets.require("delete-version")
            self._buckets.delete_version(call.bucket, call.name, generation)
        return Reply(
            202,
            b"",
            {
                "x-ms-delete-type-permanent": "false"
                if self._buckets.bucket(call.bucket).versioned
                else "true"
            },
        )

    def _generation(self, call: AzureCall) -> int | None:
        if "snapshot" in call.query:
            raise not_answered("a snapshot")
        version = call.query.get("versionid")
        if version is None:
            return None
        kept = self._buckets.history(call.bucket, call.name)
        # Of one that is not there: no generation is 0.
        return next((each.generation for each in kept if blob_version(each) == version), 0)


def _whole(data: bytes | None) -> bytes:
    if data is None:
        raise AzureError(400, "InvalidBlockList", "The specified block list is invalid.")
    return data


def _told_of(stored: StoredObject) -> dict[str, str]:
    headers = {"ETag": f'"{blob_etag(stored)}"', "Last-Modified": http_time(stored.updated)}
    return {**headers, "x-ms-version-id": blob_version(stored)} if stored.versioned else headers


def _fields(headers: Mapping[str, str]) -> dict[str, Any]:
    """What an upload's headers say of its blob."""
    kept = {"Content-Type": headers.get("content-type", "") or "application/octet-stream"}
    for name in WRITERS_HEADERS:
        if (value := headers.get(f"x-ms-blob-{name.lower()}")) and name != "Content-MD5":
            kept[name] = value
    metadata = {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}
    if any(not _METADATA_NAME.fullmatch(name) for name in metadata):
        message = "The metadata specified is invalid. It has characters that are not permitted."
        raise AzureError(400, "InvalidMetadata", message)
    if sum(len(name) + len(value) for name, value in metadata.items()) > _MOST_METADATA:
        message = "The size of the specified metadata exceeds the maximum size permitted."
        raise AzureError(400, "MetadataTooLarge", message)
    fields: dict[str, Any] = {"headers": kept, "metadata": metadata}
    if "x-ms-access-tier" in headers:
        fields["tier"] = headers["x-ms-access-tier"]
    return fields


def _check_sums(headers: Mapping[str, str], content: ObjectBytes) -> None:
    given = headers.get("content-md5")
    if given is not None:
        if _size_of(given) != 16:
            raise AzureError(400, "InvalidMd5", "The MD5 value specified in the request is invalid.")
        own = base64.b64encode(content.md5).decode()
        if given != own:
            raise _md5_mismatch(given, own)
    given = headers.get("x-ms-content-crc64")
    if given is not None:
        if _size_of(given) != 8:
            raise bad_header("x-ms-content-crc64", given)
        own = base64.b64encode(crc64(content.data).to_bytes(8, "little")).decode()
        if given != own:
            message = (
                "The CRC64 value specified in the request did not match with the CRC64 value calculated by "
                "the server."
            )
            raise AzureError(
                400, "Crc64Mismatch", message, UserSpecifiedCrc64=given, ServerCalculatedCrc64=own
            )


def _md5_mismatch(given: str, own: str) -> AzureError:
    message = (
        "The MD5 value specified in the request did not match with the MD5 value calculated by the server."
    )
    return AzureError(400, "Md5Mismatch", message, UserSpecifiedMd5=given, ServerCalculatedMd5=own)


def _size_of(text: str) -> int:
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return 0


def _write_check(headers: Mapping[str, str]) -> Check:
    """The preconditions of a write."""

    def check(found: StoredObject | None) -> None:
        none, match = headers.get("if-none-match"), headers.get("if-match")
        if match is not None and (found is None or not _matches(match, found)):
            raise condition_unmet()
        if none == "*" and found is not None:
            raise blob_exists()
        if none is not None and found is not None and _matches(none, found):
            raise condition_unmet()
        since, until = headers.get("if-modified-since"), headers.get("if-unmodified-since")
        if found is not None and (
            (since is not None and not _newer(found, since)) or (until is not None and _newer(found, until))
        ):
            raise condition_unmet()

    return check


def _matches(etags: str, stored: StoredObject) -> bool:
    return any(each.strip().strip('"') in ("*", blob_etag(stored)) for each in etags.split(","))


def _check_reading(stored: StoredObject, headers: Mapping[str, str], reply: Mapping[str, str]) -> None:
    """Raises 412, or 304 with some headers of the reply, unless the preconditions of a read hold."""
    none, match = headers.get("if-none-match"), headers.get("if-match")
    since, until = headers.get("if-modified-since"), headers.get("if-unmodified-since")
    if match is not None and not _matches(match, stored):
        raise condition_unmet()
    if until is not None and _newer(stored, until):
        raise condition_unmet()
    if (none is not None and _matches(none, stored)) or (since is not None and not _newer(stored, since)):
        told = {name: reply[name] for name in ("ETag", "Last-Modified", "x-ms-version-id") if name in reply}
        raise AzureError(
            304, "ConditionNotMet", "Not Modified", {**told, "x-ms-error-code": "ConditionNotMet"}
        )


def _newer(stored: StoredObject, time: str) -> bool:
    try:
        return stored.updated.replace(microsecond=0) > parsedate_to_datetime(time)
    except (TypeError, ValueError):
        raise bad_header("If-Modified-Since", time) from None
