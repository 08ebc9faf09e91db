"""Requests to Azure Blob Storage, of which the cases are put together."""

from __future__ import annotations

import base64
import hashlib

from keras_preempt.testing.buckets.crc64 import crc64
from tests.testing.buckets.cases import Step

HELLO = b"hello"
MD5 = base64.b64encode(hashlib.md5(HELLO).digest()).decode()
OTHER_MD5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
CRC64 = base64.b64encode(crc64(HELLO).to_bytes(8, "little")).decode()
OTHER_CRC64 = base64.b64encode(crc64(b"other").to_bytes(8, "little")).decode()
MISSING = "no-such-container-at-all"
ODD_NAME = "a/sp ace ü ☃ ?#&%25+'(x)=~*!"


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def put(name: str = "a", body: bytes | str = HELLO, **headers: str) -> Step:
    return Step("PUT", name, {}, {"x-ms-blob-type": "BlockBlob", **_named(headers)}, body)


def get(name: str = "a", method: str = "GET", **headers: str) -> Step:
    return Step(method, name, {}, _named(headers))


def listed(**query: str) -> Step:
    return Step("GET", None, {"restype": "container", "comp": "list", **query})


def of_container(method: str, **headers: str) -> Step:
    return Step(method, None, {"restype": "container"}, _named(headers))


def block(number: int, body: bytes = HELLO, **headers: str) -> Step:
    return Step("PUT", "a", {"comp": "block", "blockid": block_id(number)}, _named(headers), body)


def block_id(number: int) -> str:
    return base64.b64encode(f"{number:04}".encode()).decode()


def commit(*numbers: int, place: str = "Latest", **headers: str) -> Step:
    inner = "".join(f"<{place}>{block_id(number)}</{place}>" for number in numbers)
    text = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{inner}</BlockList>'
    return Step("PUT", "a", {"comp": "blocklist"}, _named(headers), text)
