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
from threading import RLock
from typing import Any, NamedTuple

import google_crc32c

from keras_preempt.testing.gcs import errors

_LONGEST_NAME = 1024  # bytes

OPERATIONS = ("bucket", "create", "delete", "get", "list", "update")
"""What permission can be denied for: reading a bucket's metadata, and the five things done with objects."""

WRITERS_FIELDS = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage"),
    *("contentType", "customTime", "metadata"),
)
"""The fields of an object's resource that its writer sets; all others are the service's own."""

Query = Mapping[str, str]


def _now() -> str:
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
        return dict(self.fields.get("metadata") or {})

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def resource(self) -> dict[str, Any]:
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
        """Reads them from the query of a request; their `prefix` is ``ifSource`` for those on what a copy copies."""
        names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
        return cls(*(number_in(query, f"{prefix}{name}") for name in names))

    def check(self, found: StoredObject | None, *, reading: bool) -> None:
        """Raises `GcsError` 412 (or 304, when `reading`) unless all hold for what was found."""
        generation = found.generation if found else 0
        metageneration = found.metageneration if found else None
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise errors.condition_not_met()
        unwanted = ((self.not_generation, generation), (self.not_metageneration, metageneration))
        if any(number is not None and (found is None or number == actual) for number, actual in unwanted):
            if reading and found:
                raise errors.GcsError(304, "notModified", "Not Modified")
            raise errors.condition_not_met()


class ObjectSummary(NamedTuple):
    """One stored object; `size` in bytes, `crc32c` in base64 as Google Cloud Storage writes it."""

    generation: int
    size: int
    crc32c: str
    metadata: Mapping[str, str]


def number_in(query: Query, name: str) -> int | None:
    """The value of a numeric parameter, or None if it is not given; raises `GcsError` 400."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.invalid(f"Invalid value for {name}: {text!r}")
    return int(text)


@dataclass
class _StoredBucket:
    name: str
    location: str
    created: str = field(default_factory=_now)
    objects: dict[str, StoredObject] = field(default_factory=dict)

    def resource(self) -> dict[str, Any]:
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


class Buckets:
    """All that is stored. Every method may raise `GcsError`."""

    def __init__(self, names: Collection[str], location: str, denied: Collection[str]) -> None:
        self._lock = RLock()
        self._location = location
        self._denied = denied  # The owner's own set: it may change while requests are served.
        self._buckets = {name: _StoredBucket(name, location) for name in names}
        self._last_generation = 0
        self.policies: Collection[str] = ()

    def _bucket(self, name: str) -> _StoredBucket:
        if name not in self._buckets:
            raise errors.GcsError(404, "notFound", "The specified bucket does not exist.")
        return self._buckets[name]

    def require(self, operation: str, what: str = "object") -> None:
        """Raises 403 if permission for `operation`, one of `OPERATIONS`, is denied; or what a policy answers."""
        if operation in self._denied:
            permission = "storage.buckets.get" if operation == "bucket" else f"storage.objects.{operation}"
            message = (
                f"The caller does not have {permission} access to the Google Cloud Storage {what}. "
                f"Permission '{permission}' denied on resource (or it may not exist)."
            )
            raise errors.GcsError(403, "forbidden", message)
        for policy in self.policies:
            refused, error = errors.POLICIES[policy]
            if operation in refused:
                raise errors.GcsError(*error)

    def bucket_resource(self, name: str) -> dict[str, Any]:
        with self._lock:
            bucket = self._bucket(name)
            self.require("bucket", "bucket")
            return bucket.resource()

    def granted(self, name: str, permissions: Collection[str]) -> list[str]:
        """Those of `permissions`, such as ``storage.objects.create``, that are not denied."""
        with self._lock:
            self._bucket(name)
            operations = {
                each: "bucket" if each.startswith("storage.buckets.") else each.rpartition(".")[2]
                for each in permissions
            }
            return [each for each in permissions if operations[each] not in self._denied]

    def create_bucket(self, name: str) -> dict[str, Any]:
        with self._lock:
            if name in self._buckets:
                raise errors.GcsError(409, "conflict", f"The bucket {name} exists already.")
            self._buckets[name] = _StoredBucket(name, self._location)
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
            objects = self._bucket(bucket).objects
            self.require("create")
            if not name or len(name.encode()) > _LONGEST_NAME or "\n" in name or "\r" in name:
                raise errors.invalid(f"Invalid object name: {name!r:.80}")
            conditions.check(objects.get(name), reading=False)
            if name in objects:
                self.require("delete")  # Replacing an object takes the right to delete the old generation.

    def insert(
        self, bucket: str, name: str, content: bytes, fields: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Stores a new generation if the preconditions hold, and checksums in the client's `fields` are right."""
        crc32c = base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
        md5 = fields.get("md5Hash")
        if fields.get("crc32c") not in (None, crc32c):
            raise errors.invalid(
                f"Provided CRC32C {fields['crc32c']} doesn't match calculated CRC32C {crc32c}."
            )
        if md5 is not None:  # Computed only when it is asked for: it is slow.
            calculated = hashlib.md5(content, usedforsecurity=False).digest()
            if md5 != base64.b64encode(calculated).decode():
                raise errors.invalid(f"Provided MD5 hash {md5} doesn't match calculated MD5 hash.")
        with self._lock:
            self.check_insert(bucket, name, conditions)
            # Microseconds, like the real ones; strictly rising whatever the clock does.
            self._last_generation = generation = max(self._last_generation + 1, time.time_ns() // 1000)
            own = {key: fields[key] for key in WRITERS_FIELDS if fields.get(key) is not None}
            stored = StoredObject(bucket, name, content, generation, crc32c, md5, own, created=_now())
            self._buckets[bucket].objects[name] = stored
            return stored

    def _find(self, bucket: str, name: str, operation: str, query: Query, *, reading: bool) -> StoredObject:
        objects = self._bucket(bucket).objects
        self.require(operation)
        found = objects.get(name)
        if found is None or number_in(query, "generation") not in (None, found.generation):
            self.require("list")  # Without it a client does not learn that an object does not exist.
            raise errors.GcsError(404, "notFound", f"No such object: {bucket}/{name}")
        Preconditions.of(query).check(found, reading=reading)
        return found

    def get(self, bucket: str, name: str, query: Query) -> StoredObject:
        """The live object; `query` may name a generation and preconditions."""
        with self._lock:
            return self._find(bucket, name, "get", query, reading=True)

    def delete(self, bucket: str, name: str, query: Query) -> None:
        with self._lock:
            self._find(bucket, name, "delete", query, reading=False)
            del self._buckets[bucket].objects[name]

    def update(self, bucket: str, name: str, query: Query, changes: Mapping[str, Any]) -> StoredObject:
        """Merges `changes` into the fields that the writer chooses; None takes a field out."""
        with self._lock:
            found = self._find(bucket, name, "update", query, reading=False)
            fields = {**found.fields, **{key: changes[key] for key in WRITERS_FIELDS if key in changes}}
            if isinstance(changes.get("metadata"), dict):
                merged = {**found.metadata, **changes["metadata"]}
                fields["metadata"] = {key: value for key, value in merged.items() if value is not None}
            updated = replace(
                found,
                fields={key: value for key, value in fields.items() if value is not None},
                metageneration=found.metageneration + 1,
                updated=_now(),
            )
            self._buckets[bucket].objects[name] = updated
            return updated

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        with self._lock:
            return dict(sorted(self._bucket(bucket).objects.items()))
