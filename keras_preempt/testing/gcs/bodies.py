"""The body of a request as it comes: of a length that is said ahead, or in chunks that say theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BufferedIOBase
from typing import Protocol

_LONGEST_LINE = 1024  # bytes
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r?\n")


class Body(Protocol):
    """A body. `size` is its length in bytes; None until the end of one in chunks."""

    size: int | None

    def read(self, most: int) -> bytes:
        """Returns up to `most` bytes; none at the end, or if the connection ended before it."""
        ...


class SizedBody:
    """A body of `size` bytes."""

    def __init__(self, stream: BufferedIOBase, size: int) -> None:
        self.size: int | None = size
        self._stream = stream
        self._missing = size

    def read(self, most: int) -> bytes:
        """See `Body.read`."""
        piece = self._stream.read(min(most, self._missing))
        self._missing -= len(piece)
        return piece


class ChunkedBody:
    """A body with ``Transfer-Encoding: chunked`` (RFC 9112, section 7.1), as libcurl sends it."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self.size: int | None = None
        self._stream = stream
        self._in_chunk = 0
        self._taken = 0
        self._ended = False

    def read(self, most: int) -> bytes:
        """See `Body.read`."""
        if not self._in_chunk and not self._ended:
            self._next_chunk()
        piece = self._stream.read(min(most, self._in_chunk)) if self._in_chunk else b""
        self._in_chunk -= len(piece)
        self._taken += len(piece)
        if piece and not self._in_chunk:
            self._stream.readline(_LONGEST_LINE)  # what ends each chunk
        return piece

    def _next_chunk(self) -> None:
        said = _CHUNK_SIZE.fullmatch(self._stream.readline(_LONGEST_LINE))
        if said is None:
            self._ended = True  # The connection ended, or this is no chunk: the body is not whole.
            return
        self._in_chunk = int(said.group(1), 16)
        if self._in_chunk == 0:
            self._ended = True
            while self._stream.readline(_LONGEST_LINE).strip():
                pass  # trailing headers
            self.size = self._taken


def body_of(headers: Mapping[str, str], stream: BufferedIOBase) -> Body | None:
    """Returns the body that headers, by names in lower case, announce; None if they make no sense."""
    if "transfer-encoding" in headers:
        # A Content-Length beside it does not count (RFC 9112, section 6.3).
        return ChunkedBody(stream) if headers["transfer-encoding"].lower() == "chunked" else None
    length = headers.get("content-length", "0")
    return SizedBody(stream, int(length)) if length.isascii() and length.isdigit() else None
