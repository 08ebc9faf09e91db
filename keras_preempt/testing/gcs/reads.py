"""What is read: the content of an object, whole or a range of it, and the listing of a bucket, page by page.

Source: https://cloud.google.com/storage/docs/transcoding and RFC 9110, section 12.5.3.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from keras_preempt.testing.buckets.objects import StoredObject
from keras_preempt.testing.buckets.reads import folded_page, wanted_range
from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.objects import Query, etag_of, json_resource, number_in
from keras_preempt.testing.server import Reply

_LARGEST_PAGE = 1000  # items and prefixes together, as in the real service

_NOT_BUILT = ("filter", "includeTrailingDelimiter", "matchGlob", "softDeleted", "versions")


def download(stored: StoredObject, request_headers: Mapping[str, str]) -> Reply:
    """The content, or the range of it that is asked for. Header names of the request are in lower case."""
    md5 = stored.fields.get("md5Hash")
    headers = {
        "Content-Type": str(stored.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": etag_of(stored),
        "Last-Modified": formatdate(stored.generation / 1e6, usegmt=True),
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": str(stored.metageneration),
        "x-goog-hash": f"crc32c={stored.body.crc32c}" + (f",md5={md5}" if md5 else ""),
        "x-goog-storage-class": "STANDARD",
        "x-goog-stored-content-encoding": str(stored.fields.get("contentEncoding", "identity")),
        "x-goog-stored-content-length": str(len(stored.content)),
    }
    if stored.fields.get("contentEncoding") == "gzip":
        headers["Vary"] = "Accept-Encoding"
        as_stored = "no-transform" in str(stored.fields.get("cacheControl", ""))
        if not as_stored and not _accepts_gzip(request_headers.get("accept-encoding", "")):
            # Whole, whatever range is asked for; the sums in the headers stay those of what is stored.
            try:
                content = gzip.decompress(stored.content)
            except (OSError, EOFError, zlib.error):
                return Reply(200, stored.content, headers)  # It is not gzip, whatever its writer has claimed.
            del headers["Accept-Ranges"]
            headers["Warning"] = "214 UploadServer gunzipped"
            headers["x-guploader-response-body-transformations"] = "gunzipped"
            return Reply(200, content, headers)
        headers["Content-Encoding"] = "gzip"
    size = len(stored.content)
    try:
        wanted = wanted_range(request_headers.get("range", ""), size)
    except ValueError as error:
        message = "Request range not satisfiable"
        raise errors.GcsError(
            416, "requestedRangeNotSatisfiable", message, {"Content-Range": str(error)}
        ) from None
    if wanted is None:
        return Reply(200, stored.content, headers)
    start, end = wanted
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Reply(206, stored.content[start:end], headers)


def _accepts_gzip(codings: str) -> bool:
    for entry in codings.lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0")
    return False


def listing_page(objects: Mapping[str, StoredObject], query: Query) -> dict[str, Any]:
    """One page of a listing, as the JSON API answers it, of all objects of a bucket, sorted by name."""
    for name in _NOT_BUILT:
        if query.get(name, "false") != "false":
            raise errors.not_built(f"a listing with {name}")
    limit = min(number_in(query, "maxResults") or _LARGEST_PAGE, _LARGEST_PAGE)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    start, end = query.get("startOffset", ""), query.get("endOffset")
    token = query.get("pageToken", "")
    try:
        last = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise errors.invalid(f"Invalid page token: {token!r:.80}") from error
    within = (
        (name, stored) for name, stored in objects.items() if start <= name and not (end and name >= end)
    )
    page = folded_page(within, prefix, delimiter, last, limit)
    answer: dict[str, Any] = {"kind": "storage#objects"}
    if not page.complete:
        answer["nextPageToken"] = base64.urlsafe_b64encode(page.last.encode()).decode()
    if page.items:
        answer["items"] = [json_resource(stored) for stored in page.items]
    if page.prefixes:
        answer["prefixes"] = page.prefixes
    return answer
