"""Buckets, objects, their generations and the preconditions on them, as Google Cloud Storage keeps them.

Everything that changes what is stored happens here, under one lock: a precondition is checked and the write that
depends on it takes effect in one step, so that exactly one of several racing writers wins. Listings are
consistent: they show every write and deletion before them.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from threading import Lock
from typing import Any, NamedTuple

import google_crc32c

from keras_preempt.testing.gcs import errors

_LONGEST_NAME = 1024  # bytes

OPERATIONS = ("bucket", "create", "delete", "get", "list", "update")
"""What permission can be denied for: reading a bucket's metadata, and the five things done with objects."""

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
    """The MD5 checksum, in base64."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def now() -> str:
    """The current time as it is written in resources."""
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
        """The custom metadata that the writer attached."""
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
    """What a request requires of the object's state; None requires nothing."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Query, prefix: str = "if") -> Preconditions:
        """Reads them from the query of a request; raises `GcsError` 400.

        Args:
            query: The query.
            prefix: What their names begin with: ``ifSource`` for those that a copy puts on what it copies.
        """
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


class ObjectSummary(NamedTuple):
    """One stored object; `size` in bytes, `crc32c` in base64 as Google Cloud Storage writes it."""

    generation: int
    size: int
    crc32c: str
    metadata: Mapping[str, str]


def integer(query: Query, name: str) -> int | None:
    """The value of a numeric parameter, or None if it is not given; raises `GcsError` 400."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.invalid(f"Invalid value for {name}: {text!r}")
    return int(text)


@dataclass
class Bucket:
    """A bucket: its place, and its live objects by name."""

    name: str
    location: str
    created: str = field(default_factory=now)
    objects: dict[str, StoredObject] = field(default_factory=dict)

    def resource(self) -> dict[str, Any]:
        """The bucket resource of the JSON API."""
        return {
            "kind": "storage#bucket",
            "id": self.name,
            "name": self.name,
            "projectNumber": "0",
            "location": self.location.upper(),
            "locationType": "multi-region" if self.location.upper() in ("US", "EU", "ASIA") else "region",
            "storageClass": "STANDARD",
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": self.created,
            "updated": self.created,
        }


def _operation(permission: str) -> str:
    return "bucket" if permission.startswith("storage.buckets.") else permission.rpartition(".")[2]


class Buckets:
    """All that is stored. Every method may raise `GcsError`."""

    def __init__(self, names: Collection[str], location: str, denied: Collection[str]) -> None:
        self._lock = Lock()
        self._location = location
        self._denied = denied  # The owner's own set: it may change while requests are served.
        self._buckets = {name: Bucket(name, location) for name in names}
        self._last_generation = 0
        self.policies: Collection[str] = ()

    def _bucket(self, name: str) -> Bucket:
        if name not in self._buckets:
            raise errors.no_bucket()
        return self._buckets[name]

    def _next_generation(self) -> int:
        # Microseconds, like the real ones; strictly rising whatever the clock does.
        self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
        return self._last_generation

    def require(self, operation: str, what: str = "object") -> None:
        """Raises 403 if permission for `operation`, one of `OPERATIONS`, is denied; or what a policy answers."""
        if operation in self._denied:
            permission = "storage.buckets.get" if operation == "bucket" else f"storage.objects.{operation}"
            raise errors.forbidden(permission, what)
        errors.check_policies(self.policies, operation)

    def bucket_resource(self, name: str) -> dict[str, Any]:
        """The metadata of a bucket."""
        with self._lock:
            bucket = self._bucket(name)
            self.require("bucket", "bucket")
            return bucket.resource()

    def granted(self, name: str, permissions: Collection[str]) -> list[str]:
        """Those of `permissions`, such as ``storage.objects.create``, that are not denied."""
        with self._lock:
            self._bucket(name)
            return [wanted for wanted in permissions if _operation(wanted) not in self._denied]

    def create_bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket; 409 if there is one of that name."""
        with self._lock:
            if name in self._buckets:
                raise errors.GcsError(409, "conflict", f"The bucket {name} exists already.")
            self._buckets[name] = Bucket(name, self._location)
            return self._buckets[name].resource()

    def delete_bucket(self, name: str, *, with_objects: bool = False) -> None:
        """Removes a bucket; 409 if it holds objects, unless they are to go too."""
        with self._lock:
            if self._bucket(name).objects and not with_objects:
                raise errors.GcsError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]

    def check_insert(self, bucket: str, name: str, conditions: Preconditions) -> None:
        """Raises the error that would refuse an upload that begins now; stores nothing."""
        with self._lock:
            self._admit(bucket, name, conditions)

    def _admit(self, bucket: str, name: str, conditions: Preconditions) -> dict[str, StoredObject]:
        objects = self._bucket(bucket).objects
        self.require("create")
        if not name or len(name.encode()) > _LONGEST_NAME or "\n" in name or "\r" in name:
            raise errors.invalid(f"Invalid object name: {name!r:.80}")
        conditions.check(objects.get(name), reading=False)
        if name in objects:
            self.require("delete")  # Replacing an object takes the right to delete the old generation.
        return objects

    def insert(
        self, bucket: str, name: str, content: bytes, fields: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Stores a new generation if the preconditions hold.

        `fields` is the object resource that the client sent; a checksum in it must be that of `content`.
        """
        crc32c, md5 = crc32c_of(content), fields.get("md5Hash")
        if fields.get("crc32c") not in (None, crc32c):
            raise errors.invalid(
                f"Provided CRC32C {fields['crc32c']} doesn't match calculated CRC32C {crc32c}."
            )
        if md5 is not None and md5 != md5_of(content):  # Computed only when it is asked for: it is slow.
            raise errors.invalid(f"Provided MD5 hash {md5} doesn't match calculated MD5 hash.")
        with self._lock:
            objects = self._admit(bucket, name, conditions)
            objects[name] = stored = StoredObject(
                bucket=bucket,
                name=name,
                content=content,
                generation=self._next_generation(),
                crc32c=crc32c,
                md5=md5,
                fields={key: fields[key] for key in CHOSEN_FIELDS if fields.get(key) is not None},
                created=now(),
            )
            return stored

    def _find(self, bucket: str, name: str, operation: str, query: Query, *, reading: bool) -> StoredObject:
        objects = self._bucket(bucket).objects
        self.require(operation)
        found = objects.get(name)
        if found is None or integer(query, "generation") not in (None, found.generation):
            self.require("list")  # Without it a client does not learn that an object does not exist.
            raise errors.no_object(bucket, name)
        Preconditions.of(query).check(found, reading=reading)
        return found

    def get(self, bucket: str, name: str, query: Query) -> StoredObject:
        """The live object; `query` may name a generation and preconditions."""
        with self._lock:
            return self._find(bucket, name, "get", query, reading=True)

    def delete(self, bucket: str, name: str, query: Query) -> None:
        """Removes the live object; `query` may name a generation and preconditions."""
        with self._lock:
            self._find(bucket, name, "delete", query, reading=False)
            del self._buckets[bucket].objects[name]

    def update(self, bucket: str, name: str, query: Query, changes: Mapping[str, Any]) -> StoredObject:
        """Merges `changes` into the object's chosen fields; None takes a field out."""
        with self._lock:
            found = self._find(bucket, name, "update", query, reading=False)
            fields = {**found.fields, **{key: changes[key] for key in CHOSEN_FIELDS if key in changes}}
            if isinstance(changes.get("metadata"), dict):
                fields["metadata"] = {**found.metadata, **changes["metadata"]}
                fields["metadata"] = {
                    key: value for key, value in fields["metadata"].items() if value is not None
                }
            updated = replace(
                found,
                fields={key: value for key, value in fields.items() if value is not None},
                metageneration=found.metageneration + 1,
                updated=now(),
            )
            self._buckets[bucket].objects[name] = updated
            return updated

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """All live objects, sorted by name."""
        with self._lock:
            return dict(sorted(self._bucket(bucket).objects.items()))
