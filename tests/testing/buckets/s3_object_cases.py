"""What S3 answers to requests for one object, by its documentation: https://docs.aws.amazon.com/AmazonS3/latest/API/."""

from __future__ import annotations

from tests.testing.buckets.cases import Case, Step
from tests.testing.buckets.s3_steps import (
    CHUNKED,
    CRC32,
    CRC32C,
    CRC64,
    ETAG,
    MD5,
    MISSING,
    ODD_KEY,
    OTHER_MD5,
    SHA1,
    SHA256,
    chunks,
    get,
    put,
)

WRITES = [
    Case("a put", [put()], f"200 | {ETAG}", ["etag"]),
    Case("a put of nothing", [put(body=b""), get()], "200 | 0", ["content-length"]),
    Case("a put where nothing is, if nothing is there", [put(if_none_match="*")], "200"),
    Case(
        "a put where something is, if nothing is there",
        [put(), put(if_none_match="*")],
        "412 PreconditionFailed",
    ),
    Case(
        "what was there stays", [put(), put(body=b"x", if_none_match="*"), get()], "200 | hello", reads=[".+"]
    ),
    Case("a put that replaces", [put(), put(body=b"new"), get()], "200 | new", reads=[".+"]),
    Case("a put if the ETag is that", [put(), put(body=b"x", if_match="{etag}")], "200"),
    Case("a put if the ETag is another", [put(), put(if_match='"other"')], "412 PreconditionFailed"),
    Case("a put if an ETag matches where nothing is", [put(if_match=ETAG)], "404 NoSuchKey"),
    Case("a put unless the ETag is that", [put(), put(if_none_match="{etag}")], "501 NotImplemented"),
    Case(
        "a put after a deletion, if nothing is there",
        [put(), get(method="DELETE"), put(if_none_match="*")],
        "200",
    ),
    Case(
        "a put into a bucket that is not there",
        [Step("PUT", "a", bucket=MISSING)],
        "404 NoSuchBucket",
    ),
    Case("a put with its MD5", [put(content_md5=MD5)], "200"),
    Case("a put with another MD5", [put(content_md5=OTHER_MD5)], "400 BadDigest"),
    Case("a put with what is no MD5", [put(content_md5="hello")], "400 InvalidDigest"),
    *(
        Case(
            f"a put with its {name}",
            [put(**{f"x_amz_checksum_{name}": value})],
            f"200 | {value}",
            [f"x-amz-checksum-{name}"],
        )
        for name, value in (
            ("crc32", CRC32),
            ("crc32c", CRC32C),
            ("crc64nvme", CRC64),
            ("sha1", SHA1),
            ("sha256", SHA256),
        )
    ),
    Case("a put with another crc32c", [put(x_amz_checksum_crc32c=CRC32)], "400 BadDigest"),
    Case("nothing is stored of it", [put(x_amz_checksum_crc32c=CRC32), get()], "404 NoSuchKey"),
    Case("a put with another sha256", [put(x_amz_checksum_sha256=SHA256, body=b"x")], "400 BadDigest"),
    Case("a put with what is no crc32", [put(x_amz_checksum_crc32="hello")], "400 InvalidRequest"),
    Case(
        "a put whose payload is not what was signed",
        [put(x_amz_content_sha256="0" * 64)],
        "400 XAmzContentSHA256Mismatch",
    ),
    Case("a put of an unsigned payload", [put(x_amz_content_sha256="UNSIGNED-PAYLOAD")], "200"),
    Case(
        "a put in chunks",
        [Step("PUT", "a", {}, CHUNKED, chunks()), get()],
        "200 | - | hello",
        ["content-encoding"],
        [".+"],
    ),
    Case(
        "a put in chunks with another sum",
        [Step("PUT", "a", {}, CHUNKED, chunks(trailer="AAAAAA=="))],
        "400 BadDigest",
    ),
    Case(
        "a put in chunks of another size",
        [Step("PUT", "a", {}, {**CHUNKED, "x-amz-decoded-content-length": "6"}, chunks())],
        "400 IncompleteBody",
    ),
    Case(
        "metadata and headers come back",
        [put(x_amz_meta_token="7", content_type="text/x", cache_control="no-store"), get(method="HEAD")],
        "200 | 7 | text/x | no-store",
        ["x-amz-meta-token", "content-type", "cache-control"],
    ),
    Case(
        "the type of what has none",
        [put(), get(method="HEAD")],
        "200 | binary/octet-stream",
        ["content-type"],
    ),
    Case("too much metadata", [put(x_amz_meta_much="x" * 2100)], "400 MetadataTooLarge"),
    Case("a key with every character", [put(ODD_KEY), get(ODD_KEY)], "200 | hello", reads=[".+"]),
    Case("a key of empty folders", [put("a//b"), get("a//b")], "200 | hello", reads=[".+"]),
    Case("the longest key", [put("k" * 1024)], "200"),
    Case("a longer key", [put("k" * 1025)], "400 KeyTooLongError"),
]
READS = [
    Case(
        "a get",
        [put(), get()],
        f"200 | {ETAG} | 5 | bytes | hello",
        ["etag", "content-length", "accept-ranges"],
        [".+"],
    ),
    Case("a get of what is not there", [get()], "404 NoSuchKey | a", reads=["<Key>(.*)</Key>"]),
    Case("a head", [put(), get(method="HEAD")], f"200 | {ETAG} | 5 | ", ["etag", "content-length"], [".+"]),
    Case("a head of what is not there", [get(method="HEAD")], "404 | ", reads=[".+"]),
    Case(
        "a range",
        [put(), get(range="bytes=1-2")],
        "206 | bytes 1-2/5 | 2 | el",
        ["content-range", "content-length"],
        [".+"],
    ),
    Case(
        "a range to the end",
        [put(), get(range="bytes=3-")],
        "206 | bytes 3-4/5 | lo",
        ["content-range"],
        [".+"],
    ),
    Case(
        "a range beyond the end",
        [put(), get(range="bytes=3-99")],
        "206 | bytes 3-4/5 | lo",
        ["content-range"],
        [".+"],
    ),
    Case(
        "a range of the last bytes",
        [put(), get(range="bytes=-2")],
        "206 | bytes 3-4/5 | lo",
        ["content-range"],
        [".+"],
    ),
    Case(
        "a range of more than all",
        [put(), get(range="bytes=-9")],
        "206 | bytes 0-4/5 | hello",
        ["content-range"],
        [".+"],
    ),
    Case("a range behind the end", [put(), get(range="bytes=5-")], "416 InvalidRange"),
    Case("a range of nothing", [put(body=b""), get(range="bytes=0-1")], "416 InvalidRange"),
    Case("a range that makes no sense", [put(), get(range="bytes=x")], "200 | hello", reads=[".+"]),
    Case("a range of a head", [put(), get(method="HEAD", range="bytes=1-2")], "206 | 2", ["content-length"]),
    Case("a get if the ETag is that", [put(), get(if_match=ETAG)], "200"),
    Case("a get if the ETag is another", [put(), get(if_match='"x"')], "412 PreconditionFailed"),
    Case("a get unless the ETag is that", [put(), get(if_none_match=ETAG)], f"304 | {ETAG}", ["etag"]),
    Case("a get unless the ETag is another", [put(), get(if_none_match='"x"')], "200"),
    Case(
        "a get if nothing has changed",
        [put(), get(if_unmodified_since="Sat, 01 Jan 2000 00:00:00 GMT")],
        "412 PreconditionFailed",
    ),
    Case("a get if something has changed", [put(), get(if_modified_since="{last_modified}")], "304"),
    Case(
        "sums come when they are asked for",
        [put(x_amz_checksum_crc32c=CRC32C), get(x_amz_checksum_mode="ENABLED")],
        f"200 | {CRC32C}",
        ["x-amz-checksum-crc32c"],
    ),
    Case(
        "and not otherwise", [put(x_amz_checksum_crc32c=CRC32C), get()], "200 | -", ["x-amz-checksum-crc32c"]
    ),
    Case(
        "a get out of a bucket that is not there",
        [Step("GET", "a", bucket=MISSING)],
        "404 NoSuchBucket",
    ),
]
