"""Buckets, and the objects in them with their generations, as every service keeps them.

Everything that changes what is stored happens here, under one lock: a precondition is checked and the write that
depends on it takes effect in one step, so that exactly one of several racing writers wins. Listings are
consistent: they show every write and deletion before them.
"""

from __future__ import annotations

import abc
import base64
import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from threading import RLock
from typing import Any, ClassVar, NamedTuple

import google_crc32c

from keras_preempt.testing.buckets.errors import ServiceError

OPERATIONS = ("bucket", "create", "delete", "get", "list", "update")
"""What permission can be denied for: reading a bucket's metadata, and the five things done with objects."""


class ObjectBytes:
    """The bytes of an object, and their sums: computed only when they are asked for, since that is slow."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @cached_property
    def md5(self) -> bytes:
        return hashlib.md5(self.data, usedforsecurity=False).digest()


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object, or a mark that it was deleted. Its writer chooses `fields`."""

    bucket: str
    name: str
    body: ObjectBytes
    generation: int
    fields: Mapping[str, Any]
    created: datetime
    updated: datetime
    metageneration: int = 1
    versioned: bool = False  # Whether it was written while the bucket kept versions.
    deleted: bool = False

    @property
    def content(self) -> bytes:
        return self.body.data

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.fields.get("metadata") or {})


class ObjectSummary(NamedTuple):
    """One stored object; `size` in bytes, `crc32c` in base64 as the services write it."""

    generation: int
    size: int
    crc32c: str
    metadata: Mapping[str, str]


Check = Callable[[StoredObject | None], None]
"""Raises `ServiceError` unless the preconditions of a request hold for the object that is there."""


class BucketErrors(abc.ABC):
    """The errors of one service for what can be wrong with a bucket or an object."""

    policies: ClassVar[Mapping[str, Collection[str]]]
    """Settings of a bucket, or of what it is part of: the operations that they refuse to every caller."""

    replacing: ClassVar[str] = "replace"
    """The operation that replacing an object is, beside ``"create"``."""

    hides_missing: ClassVar[bool] = True
    """Whether it takes the permission to list to learn that an object does not exist."""

    @abc.abstractmethod
    def policy(self, policy: str) -> ServiceError: ...

    @abc.abstractmethod
    def denied(self, operation: str, what: str) -> ServiceError: ...

    @abc.abstractmethod
    def no_bucket(self, name: str) -> ServiceError: ...

    @abc.abstractmethod
    def no_object(self, bucket: str, name: str) -> ServiceError: ...

    @abc.abstractmethod
    def bucket_exists(self, name: str) -> ServiceError: ...

    @abc.abstractmethod
    def bucket_holds_objects(self, name: str) -> ServiceError: ...

    @abc.abstractmethod
    def check_name(self, name: str) -> None:
        """Raises `ServiceError` if no object can have this name."""


@dataclass
class StoredBucket:
    name: str
    created: datetime
    versioned: bool  # Whether an object that is replaced or deleted is kept as a version.
    objects: dict[str, StoredObject] = field(default_factory=dict)
    past: dict[str, list[StoredObject]] = field(default_factory=dict)
    """Of each name what is not live, in the order of their generations, if versions are kept."""


class Buckets:
    """All that is stored. Every method may raise `ServiceError`.

    Attributes:
        policies: Those of `BucketErrors.policies` that are in force.
        marks_deletions: Whether a version remains of a deletion, too.
    """

    def __init__(
        self,
        names: Collection[str],
        denied: Collection[str],
        errors: BucketErrors,
        *,
        marks_deletions: bool = False,
    ) -> None:
        self._lock = RLock()
        self._denied = denied  # The owner's own set: it may change while requests are served.
        self._errors = errors
        self._buckets: dict[str, StoredBucket] = {}
        self._last_generation = 0
        self.policies: Collection[str] = ()
        self._versioned = False
        self.marks_deletions = marks_deletions
        for name in names:
            self.create_bucket(name)

    @property
    def versioned(self) -> bool:
        """Whether buckets keep versions, unless something else was asked for of one of them. May be set."""
        return self._versioned

    @versioned.setter
    def versioned(self, versioned: bool) -> None:
        with self._lock:
            self._versioned = versioned
            for bucket in self._buckets.values():
                bucket.versioned = versioned

    def bucket(self, name: str) -> StoredBucket:
        with self._lock:
            if name not in self._buckets:
                raise self._errors.no_bucket(name)
            return self._buckets[name]

    def require(self, operation: str, what: str = "object") -> None:
        """Raises the refusal if permission for `operation` is denied, or of a policy that refuses it to everybody."""
        if operation in self._denied:
            raise self._errors.denied(operation, what)
        for policy in self.policies:
            if operation in self._errors.policies[policy]:
                raise self._errors.policy(policy)

    def create_bucket(self, name: str) -> StoredBucket:
        with self._lock:
            if name in self._buckets:
                raise self._errors.bucket_exists(name)
            self._buckets[name] = StoredBucket(name, _now(), self._versioned)
            return self._buckets[name]

    def delete_bucket(self, name: str, *, with_objects: bool = False) -> None:
        """Removes a bucket; an error if it holds objects or versions, unless they are to go too."""
        with self._lock:
            bucket = self.bucket(name)
            if (bucket.objects or bucket.past) and not with_objects:
                raise self._errors.bucket_holds_objects(name)
            del self._buckets[name]

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        with self._lock:
            return dict(sorted(self.bucket(bucket).objects.items()))

    def versions(self, bucket: str) -> list[StoredObject]:
        """Everything that is kept, sorted by name, and the newest of a name first."""
        with self._lock:
            found = self.bucket(bucket)
            every = [each for past in found.past.values() for each in past] + list(found.objects.values())
            return sorted(every, key=lambda each: (each.name, -each.generation))

    def history(self, bucket: str, name: str) -> list[StoredObject]:
        """The versions of a name, also those that mark deletions, the newest one last."""
        with self._lock:
            held = self.bucket(bucket)
            return [*held.past.get(name, []), *filter(None, [held.objects.get(name)])]

    def check_insert(self, bucket: str, name: str, check: Check) -> None:
        """Raises the error that would refuse a write that begins now; stores nothing."""
        with self._lock:
            objects = self.bucket(bucket).objects
            self.require("create")
            self._errors.check_name(name)
            check(objects.get(name))
            if name in objects:
                self.require(self._errors.replacing)

    def insert(
        self, bucket: str, name: str, content: ObjectBytes, fields: Mapping[str, Any], check: Check
    ) -> StoredObject:
        """Stores a new generation if the preconditions hold."""
        with self._lock:
            self.check_insert(bucket, name, check)
            now, versioned = _now(), self._buckets[bucket].versioned
            stored = StoredObject(
                bucket, name, content, self._next_generation(), fields, now, now, versioned=versioned
            )
            self._keep(bucket, name)
            self._buckets[bucket].objects[name] = stored
            return stored

    def _next_generation(self) -> int:
        # Microseconds, like the real ones; strictly rising whatever the clock does.
        self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
        return self._last_generation

    def _keep(self, bucket: str, name: str) -> None:
        """Makes the live object, if there is one, a version."""
        found = self._buckets[bucket]
        if found.versioned and name in found.objects:
            found.past.setdefault(name, []).append(found.objects[name])

    def find(self, bucket: str, name: str, operation: str, generation: int | None = None) -> StoredObject:
        """The live object, or a generation of it, for an operation on it."""
        with self._lock:
            held = self.bucket(bucket)
            self.require(operation)
            found = held.objects.get(name)
            if generation is not None and (found is None or found.generation != generation):
                past = held.past.get(name, [])
                found = next((each for each in past if each.generation == generation), None)
            if found is None:
                if self._errors.hides_missing:
                    self.require("list")
                raise self._errors.no_object(bucket, name)
            return found

    def delete(self, bucket: str, name: str, check: Check, generation: int | None = None) -> StoredObject:
        """Deletes the live object if the preconditions hold, which is a version then if versions are kept.

        With a `generation` nothing but that one is deleted. It returns what was.
        """
        with self._lock:
            found = self.find(bucket, name, "delete", generation)
            check(found)
            self._keep(bucket, name)
            del self._buckets[bucket].objects[name]
            return found

    def mark_deleted(self, bucket: str, name: str, check: Check) -> StoredObject:
        """Deletes an object of which versions are kept, whether or not it is there: a mark comes on top of them."""
        with self._lock:
            held = self.bucket(bucket)
            self.require("delete")
            check(held.objects.get(name))
            self._keep(bucket, name)
            held.objects.pop(name, None)
            now = _now()
            mark = StoredObject(
                bucket,
                name,
                ObjectBytes(b""),
                self._next_generation(),
                {},
                now,
                now,
                versioned=True,
                deleted=True,
            )
            held.past.setdefault(name, []).append(mark)
            return mark

    def delete_version(self, bucket: str, name: str, generation: int) -> StoredObject:
        """Deletes one version for good; what is on top then is live, unless it is the mark of a deletion."""
        with self._lock:
            held = self.bucket(bucket)
            found = self.find(bucket, name, "delete", generation)
            kept = [*held.past.pop(name, []), *filter(None, [held.objects.pop(name, None)])]
            kept.remove(found)
            if self.marks_deletions and kept and not kept[-1].deleted:
                held.objects[name] = kept.pop()
            if kept:
                held.past[name] = kept
            return found

    def change(
        self,
        bucket: str,
        name: str,
        check: Check,
        fields: Callable[[StoredObject], Mapping[str, Any]],
        generation: int | None = None,
    ) -> StoredObject:
        """Changes the fields of the live object, if the preconditions hold; its generation stays."""
        with self._lock:
            found = self.find(bucket, name, "update", generation)
            check(found)
            changed = replace(
                found, fields=fields(found), metageneration=found.metageneration + 1, updated=_now()
            )
            self._buckets[bucket].objects[name] = changed
            return changed


def no_condition(found: StoredObject | None) -> None:
    """The check of a request without preconditions."""


def _now() -> datetime:
    return datetime.now(timezone.utc)
