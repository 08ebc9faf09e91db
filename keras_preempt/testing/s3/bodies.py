"""What an upload to S3 carries: its content out of the chunks that SDKs send it in, and the sums that it must have.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping

import google_crc32c

from keras_preempt.testing.buckets.crc64 import crc64
from keras_preempt.testing.s3.errors import S3Error, invalid_request

_UNSIGNED = ("UNSIGNED-PAYLOAD", "")

SUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: int(google_crc32c.value(data)).to_bytes(4, "big"),
    "crc64nvme": lambda data: crc64(data).to_bytes(8, "big"),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
"""The sums that a header ``x-amz-checksum-...`` can give, by its end."""

_PREFIX = "x-amz-checksum-"


def is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("x-amz-content-sha256", "").startswith("STREAMING-")


def first_chunk(body: bytes) -> tuple[int, int]:
    """Where the content of the first chunk begins and ends."""
    start = body.find(b"\r\n") + 2
    try:
        return start, start + int(body[: start - 2].split(b";")[0], 16)
    except ValueError:
        raise S3Error(400, "IncompleteBody", "The request body terminated unexpectedly") from None


def content_and_sums(headers: Mapping[str, str], body: bytes) -> tuple[bytes, dict[str, str]]:
    """The content of an upload, and the sums in base64 by which its sender can have it checked, all of them right.

    Raises `S3Error` if one is wrong, or if the body is not what it is announced as.
    """
    given = {name: value for name, value in headers.items() if name.startswith(_PREFIX)}
    if is_chunked(headers):
        body, trailers = _unchunked(body)
        given |= {name: value for name, value in trailers.items() if name.startswith(_PREFIX)}
        if headers.get("x-amz-decoded-content-length") != str(len(body)):
            raise S3Error(400, "IncompleteBody", "The request body terminated unexpectedly")
        announced = headers.get("x-amz-trailer", "").lower()
        if announced and announced not in trailers:
            raise S3Error(
                400, "MalformedTrailerError", "The request contained trailing data that was not well-formed"
            )
    else:
        announced = headers.get("x-amz-content-sha256", "")
        if announced not in _UNSIGNED and hashlib.sha256(body).hexdigest() != announced:
            message = "The provided 'x-amz-content-sha256' header does not match what was computed."
            raise S3Error(400, "XAmzContentSHA256Mismatch", message)
    if "content-md5" in headers:
        if len(_decoded(headers["content-md5"])) != 16:
            raise S3Error(400, "InvalidDigest", "The Content-MD5 you specified was invalid.")
        if _decoded(headers["content-md5"]) != hashlib.md5(body, usedforsecurity=False).digest():
            message = "The Content-MD5 you specified did not match what we received."
            raise S3Error(400, "BadDigest", message)
    sums = {name.removeprefix(_PREFIX): value for name, value in given.items()}
    sums = {
        name: value for name, value in sums.items() if name in SUMS
    }  # Not x-amz-checksum-type, -mode, -algorithm.
    for name, value in sums.items():
        computed = SUMS[name](body)
        if len(_decoded(value)) != len(computed):
            raise invalid_request(f"Value for {_PREFIX}{name} header is invalid.")
        if _decoded(value) != computed:
            message = f"The {name.upper()} you specified did not match the calculated checksum."
            raise S3Error(400, "BadDigest", message)
    return body, sums


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _unchunked(body: bytes) -> tuple[bytes, dict[str, str]]:
    pieces, rest = [], memoryview(body)
    while True:
        start, end = first_chunk(bytes(rest[:1024]))
        if start == end:
            break
        pieces.append(rest[start:end])
        rest = rest[end + 2 :]
    lines = bytes(rest[start:]).decode("latin-1").split("\r\n")
    trailers = (line.partition(":") for line in lines if ":" in line)
    return b"".join(pieces), {name.strip().lower(): value.strip() for name, _, value in trailers}
