"""The XML documents of S3: those that it answers with, and those that clients send.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from keras_preempt.testing.buckets.objects import Buckets, StoredObject
from keras_preempt.testing.buckets.reads import folded_page
from keras_preempt.testing.s3.errors import S3Error, malformed_xml
from keras_preempt.testing.server import Reply

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

LARGEST_PAGE = 1000
"""Keys and prefixes together, as in the real service; also the most keys of one deletion."""

Fields = Iterable[tuple[str, object]]


def element(name: str, content: Fields | object) -> str:
    """An element of text, or of other elements: a list of pairs."""
    if isinstance(content, list):
        return f"<{name}>{''.join(element(*each) for each in content)}</{name}>"
    return f"<{name}>{escape(str(content))}</{name}>"


def document(name: str, content: Fields | object) -> Reply:
    text = element(name, content).replace(f"<{name}>", f'<{name} xmlns="{_NAMESPACE}">', 1)
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Reply(200, body, {"Content-Type": "application/xml"})


def parsed(body: bytes, root: str) -> ElementTree.Element:
    """The root of a document that a client has sent, whose tags lose their namespaces."""
    try:
        found = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise malformed_xml() from None
    for each in found.iter():
        each.tag = each.tag.rpartition("}")[2]
    if found.tag != root:
        raise malformed_xml()
    return found


def written(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def s3_etag(stored: StoredObject) -> str:
    """With its quotes; one of an upload in parts is not the MD5 of its content."""
    return str(stored.fields.get("etag") or f'"{stored.body.md5.hex()}"')


def s3_version(stored: StoredObject) -> str:
    return f"{stored.generation:032x}" if stored.versioned else "null"


def listing(bucket: str, buckets: Buckets, query: Mapping[str, str]) -> Reply:
    """One page of a listing, as ListObjectsV2 answers it."""
    limit = _limit(query)
    prefix, delimiter, start = (
        query.get("prefix", ""),
        query.get("delimiter", ""),
        query.get("start-after", ""),
    )
    last = _from_token(query["continuation-token"]) if "continuation-token" in query else ""
    objects = ((name, stored) for name, stored in buckets.objects(bucket).items() if last or name > start)
    page = folded_page(objects, prefix, delimiter, last, limit)
    complete = page.complete or limit == 0
    shown = _shown(query)
    fields: list[tuple[str, object]] = [("Name", bucket), ("Prefix", shown(prefix))]
    if "continuation-token" in query:
        fields.append(("ContinuationToken", query["continuation-token"]))
    if not complete:
        fields.append(("NextContinuationToken", _token(page.last)))
    if start:
        fields.append(("StartAfter", shown(start)))
    fields += [("KeyCount", len(page.items) + len(page.prefixes)), ("MaxKeys", limit)]
    if delimiter:
        fields.append(("Delimiter", shown(delimiter)))
    if "encoding-type" in query:
        fields.append(("EncodingType", "url"))
    fields.append(("IsTruncated", "false" if complete else "true"))
    for stored in page.items:
        fields.append(("Contents", [("Key", shown(stored.name)), *_summary(stored)]))
    fields += [("CommonPrefixes", [("Prefix", shown(each))]) for each in page.prefixes]
    return document("ListBucketResult", fields)


def version_listing(bucket: str, buckets: Buckets, query: Mapping[str, str]) -> Reply:
    """All versions and deletion marks below a prefix, in one page whatever their number."""
    shown, prefix = _shown(query), query.get("prefix", "")
    fields: list[tuple[str, object]] = [
        ("Name", bucket),
        ("Prefix", shown(prefix)),
        ("MaxKeys", _limit(query)),
    ]
    fields.append(("IsTruncated", "false"))
    seen: set[str] = set()
    for stored in buckets.versions(bucket):
        if stored.name.startswith(prefix):
            latest = "false" if stored.name in seen else "true"
            seen.add(stored.name)
            names = [("Key", shown(stored.name)), ("VersionId", s3_version(stored)), ("IsLatest", latest)]
            if stored.deleted:
                fields.append(("DeleteMarker", [*names, ("LastModified", written(stored.created))]))
            else:
                fields.append(("Version", [*names, *_summary(stored)]))
    return document("ListVersionsResult", fields)


def _summary(stored: StoredObject) -> Sequence[tuple[str, object]]:
    sums = [("ChecksumAlgorithm", name.upper()) for name in stored.fields.get("sums", {})]
    size, kind = len(stored.content), stored.fields.get("x-amz-storage-class", "STANDARD")
    return [
        ("LastModified", written(stored.created)),
        ("ETag", s3_etag(stored)),
        *sums,
        ("Size", size),
        ("StorageClass", kind),
    ]


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("max-keys", "") or str(LARGEST_PAGE)
    if not (text.isascii() and text.isdigit()):
        details = {"ArgumentName": "max-keys", "ArgumentValue": text}
        raise S3Error(
            400, "InvalidArgument", "Provided max-keys not an integer or within integer range", **details
        )
    return min(int(text), LARGEST_PAGE)


class _Shown:
    """How names appear: encoded as in a URL if the client asks for it, since XML cannot hold every character."""

    def __init__(self, encoded: bool) -> None:
        self._encoded = encoded

    def __call__(self, name: str) -> str:
        return quote(name, safe="/-_.*") if self._encoded else name


def _shown(query: Mapping[str, str]) -> _Shown:
    encoding = query.get("encoding-type")
    if encoding not in (None, "url"):
        raise S3Error(400, "InvalidArgument", "Invalid Encoding Method specified in Request")
    return _Shown(encoding == "url")


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(b"1" + last.encode()).decode()


def _from_token(token: str) -> str:
    try:
        last = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        last = ""
    if not last.startswith("1"):
        raise S3Error(400, "InvalidArgument", "The continuation token provided is incorrect")
    return last[1:]
