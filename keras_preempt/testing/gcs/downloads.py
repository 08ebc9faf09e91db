"""How the content of an object is answered: whole or a range of it, as it is stored or unpacked on the way.

Source: https://cloud.google.com/storage/docs/transcoding and RFC 9110, sections 12.5.3 and 14.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from email.utils import formatdate

from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.generation import StoredObject

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""


def download(stored: StoredObject, asked: Mapping[str, str]) -> Answer:
    """The content, or the range of it that is asked for.

    Args:
        stored: the object.
        asked: the headers of the request, by names in lower case.

    Raises:
        GcsError: 416, the range is beyond the end.
    """
    headers = _headers(stored)
    if stored.fields.get("contentEncoding") == "gzip":
        headers["Vary"] = "Accept-Encoding"
        if _accepts_gzip(asked) or "no-transform" in str(stored.fields.get("cacheControl", "")):
            headers["Content-Encoding"] = "gzip"
        else:
            return _unpacked(stored, headers)
    size = len(stored.content)
    range_ = _RANGE.fullmatch(asked.get("range", ""))
    if range_ is None or range_[0] == "bytes=-":
        return 200, stored.content, headers
    first, last = range_.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size or end <= start:
        raise errors.GcsError(
            416,
            "requestedRangeNotSatisfiable",
            "Request range not satisfiable",
            {"Content-Range": f"bytes */{size}"},
        )
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return 206, stored.content[start:end], headers


def _headers(stored: StoredObject) -> dict[str, str]:
    return {
        "Content-Type": str(stored.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": stored.etag,
        "Last-Modified": formatdate(stored.generation / 1e6, usegmt=True),
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": str(stored.metageneration),
        "x-goog-hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.md5 else ""),
        "x-goog-storage-class": "STANDARD",
        "x-goog-stored-content-encoding": str(stored.fields.get("contentEncoding", "identity")),
        "x-goog-stored-content-length": str(len(stored.content)),
    }


def _accepts_gzip(asked: Mapping[str, str]) -> bool:
    for entry in asked.get("accept-encoding", "").lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0")
    return False


def _unpacked(stored: StoredObject, headers: dict[str, str]) -> Answer:
    """The content without its compression: whole, whatever range is asked for.

    The sums in the headers stay those of what is stored.
    """
    try:
        content = gzip.decompress(stored.content)
    except (OSError, EOFError, zlib.error):
        return 200, stored.content, headers  # It is no gzip, whatever its writer has said.
    del headers["Accept-Ranges"]
    headers["Warning"] = "214 UploadServer gunzipped"
    headers["x-guploader-response-body-transformations"] = "gunzipped"
    return 200, content, headers
