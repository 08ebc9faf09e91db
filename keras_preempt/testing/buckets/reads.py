"""What is read: a range of an object's content, and a page of a listing. Source: RFC 9110, section 14."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from keras_preempt.testing.buckets.objects import StoredObject

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def wanted_range(header: str, size: int) -> tuple[int, int] | None:
    """The first byte and the end of the range that is asked for; None for everything.

    Raises:
        ValueError: There is no such range.
    """
    wanted = _RANGE.fullmatch(header)
    if wanted is None or wanted[0] == "bytes=-":
        return None
    first, last = wanted.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size or end <= start:
        raise ValueError(f"bytes */{size}")
    return start, end


@dataclass
class Page:
    """One page of a listing: objects, and prefixes that stand for all objects that begin with them."""

    items: list[StoredObject] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    last: str = ""  # The entry with which the page ends.
    complete: bool = True


def folded_page(
    objects: Iterable[tuple[str, StoredObject]], prefix: str, delimiter: str, after: str, limit: int
) -> Page:
    """The entries behind `after`, at most `limit` of them, of objects that are sorted by name."""
    page = Page(last=after)
    for name, stored in objects:
        if not name.startswith(prefix):
            continue
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        entry = name if cut < 0 else name[: cut + len(delimiter)]
        if entry <= page.last:
            continue
        if len(page.items) + len(page.prefixes) == limit:
            page.complete = False
            break
        if cut < 0:
            page.items.append(stored)
        else:
            page.prefixes.append(entry)
        page.last = entry
    return page
