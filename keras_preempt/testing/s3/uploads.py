"""Multipart uploads. Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from xml.etree import ElementTree

from keras_preempt.testing.buckets.objects import ObjectBytes
from keras_preempt.testing.s3.errors import S3Error, malformed_xml

_SMALLEST_PART = 5 << 20  # bytes; the last one may be smaller
_MOST_PARTS = 10_000


@dataclass
class MultipartUpload:
    """An object that arrives in parts, which `fields` describe as of the beginning."""

    bucket: str
    name: str
    fields: Mapping[str, Any]
    id: str = field(default_factory=lambda: secrets.token_hex(32))
    parts: dict[int, ObjectBytes] = field(default_factory=dict)

    def add(self, number: str, content: bytes) -> str:
        """Keeps a part, instead of any of the same number; returns its ETag."""
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= _MOST_PARTS):
            message = f"Part number must be an integer between 1 and {_MOST_PARTS}, inclusive"
            details = {"ArgumentName": "partNumber", "ArgumentValue": number}
            raise S3Error(400, "InvalidArgument", message, **details)
        part = self.parts[int(number)] = ObjectBytes(content)
        return f'"{part.md5.hex()}"'

    def assembled(self, wanted: ElementTree.Element) -> tuple[bytes, str]:
        """The content out of the parts that a document names, and its ETag."""
        numbers, chosen = [], []
        for each in wanted.iter("Part"):
            text, etag = each.findtext("PartNumber", ""), each.findtext("ETag", "").strip('"')
            if not (text.isascii() and text.isdigit()):
                raise malformed_xml()
            part = self.parts.get(int(text))
            if part is None or etag != part.md5.hex():
                message = (
                    "One or more of the specified parts could not be found. The part may not have been uploaded, or "
                    "the specified entity tag may not match the part's entity tag."
                )
                raise S3Error(400, "InvalidPart", message, UploadId=self.id, PartNumber=text, ETag=etag)
            numbers.append(int(text))
            chosen.append(part)
        if not chosen:
            raise malformed_xml()
        if numbers != sorted(set(numbers)):
            message = "The list of parts was not in ascending order. Parts must be ordered by part number."
            raise S3Error(400, "InvalidPartOrder", message, UploadId=self.id)
        if any(len(part.data) < _SMALLEST_PART for part in chosen[:-1]):
            message = "Your proposed upload is smaller than the minimum allowed size"
            raise S3Error(400, "EntityTooSmall", message, MinSizeAllowed=str(_SMALLEST_PART))
        digest = hashlib.md5(b"".join(part.md5 for part in chosen), usedforsecurity=False).hexdigest()
        return b"".join(part.data for part in chosen), f'"{digest}-{len(chosen)}"'


class MultipartUploads:
    """Those under way; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._uploads: dict[str, MultipartUpload] = {}

    def begin(self, upload: MultipartUpload) -> MultipartUpload:
        with self._lock:
            self._uploads[upload.id] = upload
        return upload

    def find(self, bucket: str, name: str, upload_id: str) -> MultipartUpload:
        with self._lock:
            found = self._uploads.get(upload_id)
        if found is None or (found.bucket, found.name) != (bucket, name):
            message = (
                "The specified upload does not exist. The upload ID may be invalid, or the upload may have been "
                "aborted or completed."
            )
            raise S3Error(404, "NoSuchUpload", message, UploadId=upload_id)
        return found

    def end(self, upload_id: str) -> None:
        with self._lock:
            self._uploads.pop(upload_id, None)

    def under_way(self, bucket: str) -> list[MultipartUpload]:
        with self._lock:
            return [each for each in self._uploads.values() if each.bucket == bucket]

    def lose(self) -> int:
        """Forgets all of them; returns how many there were."""
        with self._lock:
            count = len(self._uploads)
            self._uploads.clear()
            return count
