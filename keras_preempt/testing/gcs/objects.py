"""Objects, their resources and the preconditions on them, as Google Cloud Storage has them."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from keras_preempt.testing.buckets.objects import Buckets, ObjectBytes, StoredBucket, StoredObject
from keras_preempt.testing.gcs import errors

WRITERS_FIELDS = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage"),
    *("contentType", "customTime", "metadata"),
)
"""The fields of an object's resource that its writer sets; all others are the service's own."""

Query = Mapping[str, str]


def _written(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def etag_of(stored: StoredObject) -> str:
    return base64.b64encode(f"{stored.generation}/{stored.metageneration}".encode()).decode()


def json_resource(stored: StoredObject) -> dict[str, Any]:
    return {
        **stored.fields,
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "bucket": stored.bucket,
        "name": stored.name,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "size": str(len(stored.content)),
        "crc32c": stored.body.crc32c,
        "etag": etag_of(stored),
        "storageClass": "STANDARD",
        "timeCreated": _written(stored.created),
        "updated": _written(stored.updated),
    }


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

    def check(self, found: StoredObject | None, *, reading: bool = False) -> None:
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


def number_in(query: Query, name: str) -> int | None:
    """The value of a numeric parameter, or None if it is not given; raises `GcsError` 400."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.invalid(f"Invalid value for {name}: {text!r}")
    return int(text)


class GcsBuckets(Buckets):
    """What is stored, and the operations on it with the parameters that the JSON API gives them."""

    def __init__(self, names: Collection[str], denied: Collection[str], location: str) -> None:
        self._location = location.upper()
        super().__init__(names, denied, errors.GcsBucketErrors())

    def bucket_resource(self, bucket: StoredBucket) -> dict[str, Any]:
        return {
            "kind": "storage#bucket",
            "id": bucket.name,
            "name": bucket.name,
            "projectNumber": "0",
            "location": self._location,
            "locationType": "multi-region" if self._location in ("US", "EU", "ASIA") else "region",
            "storageClass": "STANDARD",
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": _written(bucket.created),
            "updated": _written(bucket.created),
        }

    def granted(self, name: str, permissions: Collection[str]) -> list[str]:
        """Those of `permissions`, such as ``storage.objects.create``, that are not denied."""
        with self._lock:
            self.bucket(name)
            operations = {
                each: "bucket" if each.startswith("storage.buckets.") else each.rpartition(".")[2]
                for each in permissions
            }
            return [each for each in permissions if operations[each] not in self._denied]

    def upload(
        self, bucket: str, name: str, data: bytes, fields: Mapping[str, Any], conditions: Preconditions
    ) -> StoredObject:
        """Stores a new generation if the preconditions hold, and checksums in the client's `fields` are right."""
        content = ObjectBytes(data)
        if fields.get("crc32c") not in (None, content.crc32c):
            raise errors.invalid(
                f"Provided CRC32C {fields['crc32c']} doesn't match calculated CRC32C {content.crc32c}."
            )
        own = {key: fields[key] for key in WRITERS_FIELDS if fields.get(key) is not None}
        if (md5 := fields.get("md5Hash")) is not None:
            if md5 != base64.b64encode(content.md5).decode():
                raise errors.invalid(f"Provided MD5 hash {md5} doesn't match calculated MD5 hash.")
            own["md5Hash"] = md5  # Known of objects whose writer sent it.
        return self.insert(bucket, name, content, own, conditions.check)

    def get(self, bucket: str, name: str, query: Query) -> StoredObject:
        """The live object; `query` may name a generation and preconditions."""
        found = self.find(bucket, name, "get", number_in(query, "generation"))
        Preconditions.of(query).check(found, reading=True)
        return found

    def remove(self, bucket: str, name: str, query: Query) -> None:
        self.delete(bucket, name, Preconditions.of(query).check, number_in(query, "generation"))

    def update(self, bucket: str, name: str, query: Query, changes: Mapping[str, Any]) -> StoredObject:
        """Merges `changes` into the fields that the writer chooses; None takes a field out."""

        def merged(found: StoredObject) -> dict[str, Any]:
            fields = {**found.fields, **{key: changes[key] for key in WRITERS_FIELDS if key in changes}}
            if isinstance(changes.get("metadata"), dict):
                both = {**found.metadata, **changes["metadata"]}
                fields["metadata"] = {key: value for key, value in both.items() if value is not None}
            return {key: value for key, value in fields.items() if value is not None}

        conditions, generation = Preconditions.of(query), number_in(query, "generation")
        return self.change(bucket, name, conditions.check, merged, generation)
