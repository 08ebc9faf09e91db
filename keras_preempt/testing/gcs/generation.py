"""One generation of an object, and the preconditions that requests put on generations."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import google_crc32c

from keras_preempt.testing.gcs import errors

CHOSEN_FIELDS = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
)
"""Fields of an object's resource that its writer chooses; all others are the service's own."""

Query = Mapping[str, str]


def crc32c_of(content: bytes) -> str:
    """The checksum as resources and headers carry it: four big-endian bytes in base64."""
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def md5_of(content: bytes) -> str:
    """The other checksum, in base64."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def now() -> str:
    """The time as resources carry it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object. `fields` are those of its resource that its writer may choose."""

    bucket: str
    name: str
    content: bytes
    generation: int
    crc32c: str
    md5: str | None
    fields: Mapping[str, Any]
    created: str
    metageneration: int = 1
    updated: str = ""

    @property
    def metadata(self) -> dict[str, str]:
        """What the writer attached under names of its own."""
        return dict(self.fields.get("metadata") or {})

    @property
    def etag(self) -> str:
        """Changes whenever content or metadata do."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def resource(self) -> dict[str, Any]:
        """The object resource of the JSON API."""
        resource = {
            **self.fields,
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.content)),
            "crc32c": self.crc32c,
            "etag": self.etag,
            "storageClass": "STANDARD",
            "timeCreated": self.created,
            "updated": self.updated or self.created,
        }
        return resource if self.md5 is None else {**resource, "md5Hash": self.md5}


@dataclass(frozen=True)
class Preconditions:
    """What a request demands of the object's state; None demands nothing."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Query) -> Preconditions:
        """Reads them from the query of a request; raises `GcsError` 400."""
        return cls._called(query, "if")

    @classmethod
    def of_source(cls, query: Query) -> Preconditions:
        """Reads those that a copy puts on what it copies; raises `GcsError` 400."""
        return cls._called(query, "ifSource")

    @classmethod
    def _called(cls, query: Query, prefix: str) -> Preconditions:
        names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
        return cls(*(integer(query, f"{prefix}{name}") for name in names))

    def check(self, found: StoredObject | None, *, reading: bool) -> None:
        """Raises `GcsError` 412 (or 304, when `reading`) unless all hold for what was found."""
        generation = found.generation if found else 0
        metageneration = found.metageneration if found else None
        if self.generation is not None and self.generation != generation:
            raise errors.condition_not_met()
        if self.metageneration is not None and self.metageneration != metageneration:
            raise errors.condition_not_met()
        for unwanted, actual in (
            (self.not_generation, generation),
            (self.not_metageneration, metageneration),
        ):
            if unwanted is not None and (found is None or unwanted == actual):
                raise errors.not_modified() if reading and found else errors.condition_not_met()


def integer(query: Query, name: str) -> int | None:
    """The value of a numeric parameter, or None if it is not given; raises `GcsError` 400."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.invalid(f"Invalid value for {name}: {text!r}")
    return int(text)
