"""Listing the objects of a bucket, page by page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from keras_preempt.testing.gcs import errors
from keras_preempt.testing.gcs.generation import Query, StoredObject, integer

_LARGEST_PAGE = 1000  # items and prefixes together, as in the real service

_NOT_BUILT = ("filter", "includeTrailingDelimiter", "matchGlob", "softDeleted", "versions")


def page(objects: Mapping[str, StoredObject], query: Query) -> dict[str, Any]:
    """One page of a listing, as the JSON API answers it.

    Args:
        objects: all objects of the bucket, sorted by name.
        query: may hold ``prefix``, ``delimiter``, ``startOffset``, ``endOffset``, ``maxResults``, ``pageToken``.

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
