"""The ways to send an object: alone, together with its resource, or in resumable pieces.

Source: https://cloud.google.com/storage/docs/resumable-uploads and
https://cloud.google.com/storage/docs/uploading-objects.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.objects import GcsBuckets, Preconditions, json_resource

QUANTUM = 256 * 1024
"""A resumable upload keeps whole multiples of this many bytes, until it is complete."""

_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")

Headers = Mapping[str, str]


def parse_resource(body: bytes) -> dict[str, Any]:
    try:
        resource = json.loads(body) if body else {}
    except ValueError as error:
        raise errors.invalid("Parse Error") from error
    if not isinstance(resource, dict):
        raise errors.invalid("Parse Error")
    return resource


def parse_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Splits a ``multipart/related`` body into the resource and the content."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise errors.invalid("Expected multipart/related with a boundary.")
    mark = b"--" + boundary[1].encode()
    end = body.rfind(b"\r\n" + mark + b"--")
    second = body.find(b"\r\n" + mark + b"\r\n", len(mark))
    if not body.startswith(mark + b"\r\n") or second < 0 or end <= second:
        raise errors.invalid("Malformed multipart body.")
    _, first_gap, resource = body[len(mark) + 2 : second].partition(b"\r\n\r\n")
    head, second_gap, content = body[second + 2 + len(mark) + 2 : end].partition(b"\r\n\r\n")
    if not first_gap or not second_gap:
        raise errors.invalid("Malformed multipart body.")
    fields = parse_resource(resource)
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-type":
            fields.setdefault("contentType", value.strip())
    return fields, content


def checksums(headers: Headers) -> dict[str, str]:
    """The checksums in request headers, under their names in a resource."""
    found = {}
    for entry in headers.get("x-goog-hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        if kind in ("crc32c", "md5"):
            found["md5Hash" if kind == "md5" else kind] = value
    if "content-md5" in headers:
        found["md5Hash"] = headers["content-md5"]
    return found


@dataclass
class UploadSession:
    """A resumable upload. Once the content is stored it is not held here: a deleted object leaves no memory behind."""

    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Preconditions
    total: int | None  # Bytes; None if not known yet.
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    lock: Lock = field(default_factory=Lock)
    pieces: list[bytes] = field(default_factory=list)  # What has arrived and is kept: `size` bytes.
    size: int = 0
    stored: dict[str, Any] | None = None  # The object's resource.
    refused: ServiceError | None = None
    lost: bool = False

    def receive(
        self, buckets: GcsBuckets, headers: Headers, body: bytes, *, whole: bool
    ) -> dict[str, Any] | None:
        """Takes a piece, which Content-Range places; returns the object's resource if that completes it.

        If not the `whole` of it arrived, nothing is completed.
        """
        with self.lock:
            if self.lost:
                raise errors.GcsError(410, "uploadSessionGone", "The upload session is gone. Start over.")
            if self.refused is not None:
                raise self.refused
            if self.stored is not None:
                return self.stored  # An answer was lost: the client asks, or sends the end, again.
            place = _CONTENT_RANGE.fullmatch(headers.get("content-range", f"bytes 0-*/{len(body)}"))
            if place is None:
                raise errors.invalid("Failed to parse Content-Range header.")
            first, last, total = place.groups()
            if total != "*":
                if self.total not in (None, int(total)):
                    raise errors.invalid(f"Upload was announced with {self.total} bytes. Received: {total}.")
                self.total = int(total)
            if first is None:
                done = self.total == self.size and total != "*"
            else:
                if whole and last != "*" and int(last) - int(first) + 1 != len(body):
                    raise errors.invalid("Content-Range does not match Content-Length.")
                done = self._keep(int(first), body) and whole
            if not done:
                return None
            content = b"".join(self.pieces)
            self.pieces = []
            fields = {**self.fields, **checksums(headers)}
            try:
                stored = buckets.upload(self.bucket, self.name, content, fields, self.conditions)
            except ServiceError as error:
                self.refused = error  # For good: asked again, the answer is the same.
                raise
            self.stored = json_resource(stored)
            return self.stored

    def _keep(self, first: int, body: bytes) -> bool:
        """Appends what is new in a piece; returns whether that is the end."""
        if first > self.size:
            raise errors.invalid(f"Expected a piece that starts at byte {self.size}. Received: {first}.")
        fresh = body[self.size - first :]
        end = self.size + len(fresh)
        if self.total is not None and end > self.total:
            raise errors.invalid(f"Expected {self.total} bytes in all. Received: {end}.")
        done = end == self.total
        if not done:
            fresh = fresh[: end // QUANTUM * QUANTUM - self.size]
        self.pieces.append(fresh)
        self.size += len(fresh)
        return done


class UploadSessions(dict[str, UploadSession]):
    def __missing__(self, upload_id: str) -> UploadSession:
        raise errors.GcsError(404, "notFound", "There is no such upload session.")

    def lose(self, upload_id: str | None = None) -> int:
        """Makes the service forget one upload, or all that can still become an object; returns how many."""
        count = 0
        for session in list(self.values()):
            complete = session.stored is not None or session.refused is not None
            if upload_id in (None, session.id) and not complete and not session.lost:
                session.lost, session.pieces = True, []
                count += 1
        return count
