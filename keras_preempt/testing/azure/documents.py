"""The XML documents of Azure Blob Storage.

Source: https://learn.microsoft.com/rest/api/storageservices/list-blobs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from keras_preempt.testing.azure.errors import AzureError, bad_parameter, bad_xml
from keras_preempt.testing.buckets.objects import Buckets, StoredObject
from keras_preempt.testing.buckets.reads import folded_page
from keras_preempt.testing.server import Reply

_LARGEST_PAGE = 5000  # blobs and prefixes together, as in the real service
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

WRITERS_HEADERS = (
    *("Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type"),
    "Content-MD5",
)
"""The headers of a blob that its writer chooses; of an upload they have x-ms-blob- in front."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def blob_etag(stored: StoredObject) -> str:
    """Without the quotes that it has in headers."""
    return f"0x8D{stored.generation * 1000 + stored.metageneration:X}"


def blob_version(stored: StoredObject) -> str:
    return f"{_EPOCH + timedelta(microseconds=stored.generation):%Y-%m-%dT%H:%M:%S.%f}0Z"


def http_time(time: datetime) -> str:
    return format_datetime(time, usegmt=True)


def blob_headers(stored: StoredObject) -> dict[str, str]:
    return dict(stored.fields.get("headers") or {"Content-Type": "application/octet-stream"})


def xml_reply(text: str) -> Reply:
    body = f'\ufeff<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    return Reply(200, body, {"Content-Type": "application/xml"})


def block_list(body: bytes) -> list[tuple[str, str]]:
    """The ids that a document lists, each with where it is to be looked for: Committed, Uncommitted or Latest."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise bad_xml() from None
    found = [(each.tag, (each.text or "").strip()) for each in root]
    if root.tag != "BlockList" or not {tag for tag, _ in found} <= {"Committed", "Uncommitted", "Latest"}:
        raise bad_xml()
    return found


def blob_listing(endpoint: str, container: str, buckets: Buckets, query: Mapping[str, str]) -> Reply:
    """One page of a listing of blobs, and with them of their metadata and versions if they are asked for."""
    prefix, delimiter, marker = query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", "")
    limit, included = _limit(query), query.get("include", "").split(",")
    kept = buckets.versions(container) if "versions" in included else buckets.objects(container).values()
    if "versions" in included and delimiter:
        raise bad_parameter("include", query["include"])
    last = _from_marker(marker)
    if "versions" in included:
        # The key of a version sorts behind those before it.
        keyed = sorted((f"{each.name}\0{blob_version(each)}", each) for each in kept)
    else:
        keyed = [(each.name, each) for each in kept]
    page = folded_page(keyed, prefix, delimiter, last, limit)
    live = buckets.objects(container)
    entries = [(each.name, _blob(each, included, live=live.get(each.name) is each)) for each in page.items]
    entries += [(each, f"<BlobPrefix>{_name(each)}</BlobPrefix>") for each in page.prefixes]
    told = {
        "Prefix": prefix,
        "Marker": marker,
        "MaxResults": query.get("maxresults", ""),
        "Delimiter": delimiter,
    }
    given = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in told.items() if value)
    blobs = "".join(text for _, text in sorted(entries, key=lambda entry: entry[0]))
    following = "" if page.complete else _marker(page.last)
    where = f"ServiceEndpoint={quoteattr(endpoint + '/')} ContainerName={quoteattr(container)}"
    return xml_reply(
        f"<EnumerationResults {where}>{given}<Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker>"
        "</EnumerationResults>"
    )


def _blob(stored: StoredObject, included: list[str], *, live: bool) -> str:
    properties = {
        "Creation-Time": http_time(stored.created),
        "Last-Modified": http_time(stored.updated),
        "Etag": blob_etag(stored),
        "Content-Length": str(len(stored.content)),
        **blob_headers(stored),
        "BlobType": "BlockBlob",
        "AccessTier": str(stored.fields.get("tier", "Hot")),
        "LeaseStatus": "unlocked",
        "LeaseState": "available",
        "ServerEncrypted": "true",
    }
    text = _name(stored.name)
    if stored.versioned:
        text += f"<VersionId>{blob_version(stored)}</VersionId>"
        text += "<IsCurrentVersion>true</IsCurrentVersion>" if live else ""
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in properties.items())
    text += f"<Properties>{inner}</Properties>"
    if "metadata" in included:
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in stored.metadata.items())
        text += f"<Metadata>{inner}</Metadata>"
    return f"<Blob>{text}<OrMetadata /></Blob>"


def _name(name: str) -> str:
    if _NOT_IN_XML.search(name):
        return f'<Name Encoded="true">{quote(name)}</Name>'
    return f"<Name>{escape(name)}</Name>"


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("maxresults", str(_LARGEST_PAGE))
    if not re.fullmatch(r"-?[0-9]+", text):
        raise bad_parameter("maxresults", text)
    if int(text) < 1:
        message = "A query parameter specified in the request URI is outside the permissible range."
        details = {"QueryParameterName": "maxresults", "QueryParameterValue": text}
        raise AzureError(400, "OutOfRangeQueryParameterValue", message, **details)
    return min(int(text), _LARGEST_PAGE)


def _marker(last: str) -> str:
    return "2!" + base64.urlsafe_b64encode(last.encode()).decode()


def _from_marker(marker: str) -> str:
    if not marker:
        return ""
    try:
        if marker.startswith("2!"):
            return base64.b64decode(marker[2:], altchars=b"-_", validate=True).decode()
    except ValueError:
        pass
    raise bad_parameter("marker", marker)
