"""What is read: the content of an object, whole or a range of it, and the listing of a bucket, page by page.

Source: https://cloud.google.com/storage/docs/transcoding and RFC 9110, sections 12.5.3 and 14.
"""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.objects import Query, StoredObject, integer
from keras_preempt.testing.server import Reply

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

_LARGEST_PAGE = 1000  # items and prefixes together, as in the real service

_NOT_BUILT = ("filter", "includeTrailingDelimiter", "matchGlob", "softDeleted", "versions")


def download(stored: StoredObject, asked: Mapping[str, str]) -> Reply:
    """The content, or the range of it that is asked for.

    Args:
        stored: The object.
        asked: The headers of the request, by names in lower case.

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
        return Reply(200, stored.content, headers)
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
    return Reply(206, stored.content[start:end], headers)


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


def _unpacked(stored: StoredObject, headers: dict[str, str]) -> Reply:
    """The content without its compression: whole, whatever range is asked for.

    The sums in the headers stay those of what is stored.
    """
    try:
        content = gzip.decompress(stored.content)
    except (OSError, EOFError, zlib.error):
        return Reply(200, stored.content, headers)  # It is no gzip, whatever its writer has said.
    del headers["Accept-Ranges"]
    headers["Warning"] = "214 UploadServer gunzipped"
    headers["x-guploader-response-body-transformations"] = "gunzipped"
    return Reply(200, content, headers)


def page(objects: Mapping[str, StoredObject], query: Query) -> dict[str, Any]:
    """One page of a listing, as the JSON API answers it.

    Args:
        objects: All objects of the bucket, sorted by name.
        query: May hold ``prefix``, ``delimiter``, ``startOffset``, ``endOffset``, ``maxResults``, ``pageToken``.

    Raises:
        GcsError: 400 for a parameter that makes no sense, 501 for one that is not imitated.
    """
    for name in _NOT_BUILT:
        if query.get(name, "false") != "false":
            raise errors.not_built(f"a listing with {name}")
    limit = min(integer(query, "maxResults") or _LARGEST_PAGE, _LARGEST_PAGE)
    after = _decode(query["pageToken"]) if query.get("pageToken") else ""
    items: list[dict[str, Any]] = []
    prefixes: list[str] = []
    last = ""
    answer: dict[str, Any] = {"kind": "storage#objects"}
    for name, stored in objects.items():
        entry, folded = _entry(name, query)
        if entry is None or entry <= after or (folded and prefixes and prefixes[-1] == entry):
            continue
        if len(items) + len(prefixes) == limit:
            answer["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
            break
        if folded:
            prefixes.append(entry)
        else:
            items.append(stored.resource())
        last = entry
    if items:
        answer["items"] = items
    if prefixes:
        answer["prefixes"] = prefixes
    return answer


def _entry(name: str, query: Query) -> tuple[str | None, bool]:
    """What an object is listed as, and whether that is a prefix that stands for several; None: not at all."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset")
    if not name.startswith(prefix) or name < query.get("startOffset", "") or (end and name >= end):
        return None, False
    cut = name.find(delimiter, len(prefix)) if delimiter else -1
    return (name, False) if cut < 0 else (name[: cut + len(delimiter)], True)


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise errors.invalid(f"Invalid page token: {token!r:.80}") from error
