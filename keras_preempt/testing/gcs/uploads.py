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

from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.objects import Buckets, Preconditions

QUANTUM = 256 * 1024
"""A resumable upload keeps whole multiples of this many bytes, until it is complete."""

_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")

Headers = Mapping[str, str]


def parse_resource(body: bytes) -> dict[str, Any]:
    """The JSON object that a request carries; raises `GcsError` 400."""
    try:
        resource = json.loads(body) if body else {}
    except ValueError as error:
        raise errors.invalid("Parse Error") from error
    if not isinstance(resource, dict):
        raise errors.invalid("Parse Error")
    return resource


def parse_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Splits a ``multipart/related`` body into the resource and the content; raises `GcsError` 400."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise errors.invalid("Expected multipart/related with a boundary.")
    mark = b"--" + boundary[1].encode()
    end = body.rfind(b"\r\n" + mark + b"--")
    second = body.find(b"\r\n" + mark + b"\r\n", len(mark))
    if not body.startswith(mark + b"\r\n") or second < 0 or end <= second:
        raise errors.invalid("Malformed multipart body.")
    _, resource = _part(body[len(mark) + 2 : second])
    headers, content = _part(body[second + 2 + len(mark) + 2 : end])
    fields = parse_resource(resource)
    if "content-type" in headers:
        fields.setdefault("contentType", headers["content-type"])
    return fields, content


def _part(part: bytes) -> tuple[dict[str, str], bytes]:
    head, gap, content = part.partition(b"\r\n\r\n")
    if not gap:
        raise errors.invalid("Malformed multipart body.")
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}, content


def checksums(headers: Headers) -> dict[str, str]:
    """The checksums in request headers, under their names in a resource."""
    promised = {}
    for entry in headers.get("x-goog-hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        if kind in ("crc32c", "md5"):
            promised["md5Hash" if kind == "md5" else kind] = value
    if "content-md5" in headers:
        promised["md5Hash"] = headers["content-md5"]
    return promised


@dataclass
class Session:
    """A resumable upload. `pieces` are what has arrived and is kept: `size` bytes; `stored` is the object's resource.

    The content is not held here once it is stored: an object that is deleted leaves no memory behind.
    """

    id: str
    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Preconditions
    total: int | None
    lock: Lock = field(default_factory=Lock)
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    stored: dict[str, Any] | None = None
    refused: errors.GcsError | None = None
    lost: bool = False

    @property
    def under_way(self) -> bool:
        """Whether it can still become an object."""
        return self.stored is None and self.refused is None and not self.lost

    def receive(
        self, buckets: Buckets, headers: Headers, body: bytes, *, whole: bool
    ) -> dict[str, Any] | None:
        """Takes a piece; returns the object's resource if that completes it, else None.

        Args:
            buckets: Where the object is stored in the end.
            headers: Of the request; Content-Range places the piece.
            body: The piece, or as much as arrived.
            whole: Whether all of it arrived; if not, nothing is completed.
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
            self._agree_on_total(total)
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
                stored = buckets.insert(self.bucket, self.name, content, fields, self.conditions)
            except errors.GcsError as error:
                self.refused = error  # For good: asked again, the answer is the same.
                raise
            self.stored = stored.resource()
            return self.stored

    def _agree_on_total(self, total: str) -> None:
        if total == "*":
            return
        if self.total not in (None, int(total)):
            raise errors.invalid(f"Upload was announced with {self.total} bytes. Received: {total}.")
        self.total = int(total)

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


class Sessions:
    """All resumable uploads, by their unguessable id."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sessions: dict[str, Session] = {}

    def begin(
        self, bucket: str, name: str, fields: dict[str, Any], conditions: Preconditions, total: int | None
    ) -> Session:
        """Begins an upload of `total` bytes (None: not known yet)."""
        session = Session(secrets.token_urlsafe(24), bucket, name, fields, conditions, total)
        with self._lock:
            self._sessions[session.id] = session
        return session

    def find(self, upload_id: str) -> Session:
        """The upload of that id; raises `GcsError` 404."""
        with self._lock:
            if upload_id not in self._sessions:
                raise errors.GcsError(404, "notFound", "There is no such upload session.")
            return self._sessions[upload_id]

    def lose(self, upload_id: str | None = None) -> int:
        """Makes the service forget one upload, or all that are not complete; returns how many."""
        with self._lock:
            sessions = [s for s in self._sessions.values() if upload_id in (None, s.id) and s.under_way]
        for session in sessions:
            session.lost, session.pieces = True, []
        return len(sessions)
