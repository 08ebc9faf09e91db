"""Requests to S3, of which the cases are put together."""

from __future__ import annotations

import base64
import hashlib
import zlib

import google_crc32c

from tests.testing.buckets.cases import Step

HELLO = b"hello"
ETAG = f'"{hashlib.md5(HELLO).hexdigest()}"'
MD5 = base64.b64encode(hashlib.md5(HELLO).digest()).decode()
OTHER_MD5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
CRC32 = base64.b64encode(zlib.crc32(HELLO).to_bytes(4, "big")).decode()
CRC32C = base64.b64encode(google_crc32c.value(HELLO).to_bytes(4, "big")).decode()
CRC64 = "M3eFcAZSQlc="
SHA1 = base64.b64encode(hashlib.sha1(HELLO).digest()).decode()
SHA256 = base64.b64encode(hashlib.sha256(HELLO).digest()).decode()
PART = bytes(5 << 20)
PART_ETAG = f'"{hashlib.md5(PART).hexdigest()}"'
MISSING = "no-such-bucket-at-all"
ODD_KEY = "a/sp ace ü ☃ ?#&%25+'(x)=~*!.."

VERSIONING = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
CHUNKED = {
    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "content-encoding": "aws-chunked",
    "x-amz-decoded-content-length": "5",
    "x-amz-trailer": "x-amz-checksum-crc32",
}


def put(key: str = "a", body: bytes | str = HELLO, **headers: str) -> Step:
    return Step("PUT", key, {}, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def get(key: str = "a", method: str = "GET", **headers: str) -> Step:
    return Step(method, key, {}, {name.replace("_", "-"): value for name, value in headers.items()})


def listed(**query: str) -> Step:
    return Step(
        "GET", None, {"list-type": "2", **{name.replace("_", "-"): value for name, value in query.items()}}
    )


def chunks(size: str = "5", trailer: str = CRC32) -> str:
    return f"{size}\r\nhello\r\n0\r\nx-amz-checksum-crc32:{trailer}\r\n\r\n"


def deletion(*keys: str, quiet: str = "false") -> Step:
    objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    body = f"<Delete><Quiet>{quiet}</Quiet>{objects}</Delete>".encode()
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    return Step("POST", None, {"delete": ""}, {"content-md5": md5}, body)


def completion(*parts: tuple[int, str], **headers: str) -> Step:
    inner = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts
    )
    text = f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Step("POST", "a", {"uploadId": "{upload}"}, named, text)


def part(number: int, body: bytes, upload: str = "{upload}") -> Step:
    return Step("PUT", "a", {"partNumber": str(number), "uploadId": upload}, {}, body)


BEGIN = Step("POST", "a", {"uploads": ""})
HELLO_PART = (2, ETAG)
TREE = [put(key) for key in ("a", "a/1", "a/2", "a/b/3", "b", "c/5", "ä/6")]
KEYS, PREFIXES = r"<Key>([^<]*)</Key>", r"<CommonPrefixes><Prefix>([^<]*)</Prefix>"
COUNT, MORE = r"<KeyCount>(\d+)<", r"<IsTruncated>(\w+)<"
KEPT = [Step("PUT", None, {"versioning": ""}, {}, VERSIONING), put()]
