"""What a test can look at afterwards: the requests that came, and the objects that are there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class ObjectSummary(NamedTuple):
    """One stored object; `size` in bytes, `crc32c` in base64 as Google Cloud Storage writes it."""

    generation: int
    size: int
    crc32c: str
    metadata: Mapping[str, str]


@dataclass
class Request:
    """One request that the server received.

    Attributes:
        method: the HTTP method.
        path: the path with its query, percent-decoded.
        target: ``bucket/object``, as far as the request names them.
        status: the HTTP status that was sent; None while the request is in flight, and if nothing was sent.
        bytes: how many bytes of body were received and sent, without headers.
        fault: the kind of the fault that was put in its way, or None.
    """

    method: str
    path: str
    target: str
    status: int | None = None
    bytes: int = 0
    fault: str | None = None

    @property
    def text(self) -> str:
        """``METHOD path?query bucket/object``: what the `match` of a fault is looked for in."""
        return f"{self.method} {self.path} {self.target}"


class RequestLog:
    """All requests, in the order of their arrival; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Adds a request; its fields may still be filled in."""
        with self._lock:
            self._requests.append(request)

    def snapshot(self) -> list[Request]:
        """Returns copies, so that what a test compares does not change under it."""
        with self._lock:
            return [replace(request) for request in self._requests]

    def clear(self) -> None:
        """Forgets all requests so far."""
        with self._lock:
            self._requests.clear()
