"""What S3 answers, by its documentation: https://docs.aws.amazon.com/AmazonS3/latest/API/."""

from __future__ import annotations

import base64
import hashlib
import zlib

import google_crc32c

from tests.testing.buckets.cases import Case, Step

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
DELETIONS = [
    Case("a deletion", [put(), get(method="DELETE")], "204 | ", reads=[".+"]),
    Case("it is gone", [put(), get(method="DELETE"), get()], "404 NoSuchKey"),
    Case("a deletion of what is not there", [get(method="DELETE")], "204"),
    Case(
        "a deletion if the ETag is another",
        [put(), get(method="DELETE", if_match='"x"')],
        "412 PreconditionFailed",
    ),
    Case(
        "deletions together",
        [put(), put("b"), deletion("a", "b", "none")],
        "200 | a,b,none",
        reads=[r"<Deleted>.*?<Key>(.*?)</Key>"],
    ),
    Case(
        "deletions together, quietly",
        [put(), deletion("a", quiet="true")],
        "200 | ",
        reads=[r"<Deleted>.*?<Key>(.*?)</Key>"],
    ),
    Case("they are gone", [put(), put("b"), deletion("a"), listed()], "200 | b", reads=[KEYS]),
    Case("deletions of nothing", [deletion()], "400 MalformedXML"),
    Case(
        "deletions by what is no XML",
        [Step("POST", None, {"delete": ""}, {"content-md5": MD5}, HELLO)],
        "400 MalformedXML",
    ),
    Case("more deletions than a thousand", [deletion(*map(str, range(1001)))], "400 MalformedXML"),
]
LISTINGS = [
    Case(
        "a listing",
        [*TREE, listed()],
        "200 | a,a/1,a/2,a/b/3,b,c/5,ä/6 | 7 | false",
        reads=[KEYS, COUNT, MORE],
    ),
    Case("a listing of nothing", [listed()], "200 |  | 0 | false", reads=[KEYS, COUNT, MORE]),
    Case("a listing below a prefix", [*TREE, listed(prefix="a/")], "200 | a/1,a/2,a/b/3", reads=[KEYS]),
    Case(
        "a listing with a delimiter",
        [*TREE, listed(delimiter="/")],
        "200 | a,b | a/,c/,ä/ | 5",
        reads=[KEYS, PREFIXES, COUNT],
    ),
    Case(
        "below a prefix, too",
        [*TREE, listed(delimiter="/", prefix="a/")],
        "200 | a/1,a/2 | a/b/",
        reads=[KEYS, PREFIXES],
    ),
    Case("a page", [*TREE, listed(max_keys="3")], "200 | a,a/1,a/2 | 3 | true", reads=[KEYS, COUNT, MORE]),
    Case(
        "the next page",
        [*TREE, listed(max_keys="3"), listed(max_keys="3", continuation_token="{token}")],
        "200 | a/b/3,b,c/5 | true",
        reads=[KEYS, MORE],
    ),
    Case(
        "a page with a delimiter",
        [*TREE, listed(max_keys="2", delimiter="/")],
        "200 | a | a/ | true",
        reads=[KEYS, PREFIXES, MORE],
    ),
    Case(
        "the page behind a prefix",
        [*TREE, listed(max_keys="2", delimiter="/"), listed(delimiter="/", continuation_token="{token}")],
        "200 | b | c/,ä/",
        reads=[KEYS, PREFIXES],
    ),
    Case("a listing behind a key", [*TREE, listed(start_after="a/b/3")], "200 | b,c/5,ä/6", reads=[KEYS]),
    Case("a page of nothing", [*TREE, listed(max_keys="0")], "200 |  | false", reads=[KEYS, MORE]),
    Case("a page of a text", [listed(max_keys="x")], "400 InvalidArgument"),
    Case("a token that is none", [listed(continuation_token="x")], "400 InvalidArgument"),
    Case(
        "keys as in a URL",
        [put("a &<\x01ü"), listed(encoding_type="url")],
        "200 | a%20%26%3C%01%C3%BC | url",
        reads=[KEYS, "<EncodingType>(.*?)<"],
    ),
    Case("keys in XML", [put("a &<"), listed()], "200 | a &amp;&lt;", reads=[KEYS]),
    Case(
        "what a listing says of an object",
        [put(), listed()],
        f"200 | {ETAG} | 5 | STANDARD",
        reads=["<ETag>(.*?)</", r"<Size>(\d+)<", "<StorageClass>(.*?)<"],
    ),
    Case(
        "a listing of a bucket that is not there",
        [Step("GET", None, {"list-type": "2"}, bucket=MISSING)],
        "404 NoSuchBucket",
    ),
]
PARTS = [
    Case(
        "an upload in parts",
        [BEGIN, part(1, PART), part(2, HELLO), completion((1, PART_ETAG), HELLO_PART), get(method="HEAD")],
        f'200 | {len(PART) + 5} | "{hashlib.md5(hashlib.md5(PART).digest() + hashlib.md5(HELLO).digest()).hexdigest()}-2"',
        ["content-length", "etag"],
    ),
    Case(
        "an upload in one part",
        [BEGIN, part(2, HELLO), completion(HELLO_PART), get()],
        "200 | hello",
        reads=[".+"],
    ),
    Case("nothing is there before its end", [BEGIN, part(1, HELLO), get()], "404 NoSuchKey"),
    Case(
        "its end, if nothing is there",
        [put(), BEGIN, part(2, HELLO), completion(HELLO_PART, if_none_match="*")],
        "412 PreconditionFailed",
    ),
    Case(
        "its end, if nothing is there, and nothing is",
        [BEGIN, part(2, HELLO), completion(HELLO_PART, if_none_match="*")],
        "200",
    ),
    Case(
        "a part that was sent twice counts once",
        [BEGIN, part(2, b"x"), part(2, HELLO), completion(HELLO_PART), get()],
        "200 | hello",
        reads=[".+"],
    ),
    Case(
        "an end with a part that was not sent",
        [BEGIN, part(2, HELLO), completion((1, ETAG))],
        "400 InvalidPart",
    ),
    Case(
        "an end with a part of another ETag",
        [BEGIN, part(2, HELLO), completion((2, PART_ETAG))],
        "400 InvalidPart",
    ),
    Case(
        "an end with parts in another order",
        [BEGIN, part(1, PART), part(2, HELLO), completion(HELLO_PART, (1, PART_ETAG))],
        "400 InvalidPartOrder",
    ),
    Case(
        "an end with a small part before another",
        [BEGIN, part(1, HELLO), part(2, HELLO), completion((1, ETAG), HELLO_PART)],
        "400 EntityTooSmall",
    ),
    Case("an end without parts", [BEGIN, completion()], "400 MalformedXML"),
    Case(
        "a part of an upload that was given up",
        [BEGIN, Step("DELETE", "a", {"uploadId": "{upload}"}), part(1, HELLO)],
        "404 NoSuchUpload",
    ),
    Case("giving an upload up", [BEGIN, Step("DELETE", "a", {"uploadId": "{upload}"})], "204"),
    Case("a part of an upload that is none", [part(1, HELLO, "none")], "404 NoSuchUpload"),
    Case("a part of a number that is none", [BEGIN, part(0, HELLO)], "400 InvalidArgument"),
    Case(
        "an end twice",
        [BEGIN, part(2, HELLO), completion(HELLO_PART), completion(HELLO_PART)],
        "404 NoSuchUpload",
    ),
]
BUCKETS = [
    Case("a head of a bucket", [get(None, "HEAD")], "200 | us-east-1 | ", ["x-amz-bucket-region"], [".+"]),
    Case("a head of a bucket that is not there", [Step("HEAD", None, bucket=MISSING)], "404"),
    Case(
        "where a bucket is",
        [Step("GET", None, {"location": ""})],
        "200 | ",
        reads=["<LocationConstraint[^>]*>([^<]+)<"],
    ),
    Case("a deletion of a bucket", [get(None, "DELETE")], "204"),
    Case("a deletion of a bucket with objects", [put(), get(None, "DELETE")], "409 BucketNotEmpty"),
    Case(
        "whether versions are kept",
        [KEPT[0], Step("GET", None, {"versioning": ""})],
        "200 | Enabled",
        reads=["<Status>(.*?)<"],
    ),
    Case("whether none are", [Step("GET", None, {"versioning": ""})], "200 | ", reads=["<Status>(.*?)<"]),
]
VERSIONS = [
    Case(
        "a version that was replaced",
        [*KEPT, put(body=b"x"), Step("GET", "a", {"versionId": "{x_amz_version_id}"})],
        "200 | x",
        reads=[".+"],
    ),
    Case("a deletion is a mark", [*KEPT, get(method="DELETE")], "204 | true", ["x-amz-delete-marker"]),
    Case(
        "behind it nothing is seen",
        [*KEPT, get(method="DELETE"), get()],
        "404 NoSuchKey | true",
        ["x-amz-delete-marker"],
    ),
    Case("and nothing is listed", [*KEPT, get(method="DELETE"), listed()], "200 | ", reads=[KEYS]),
    Case("a put is possible again", [*KEPT, get(method="DELETE"), put(if_none_match="*")], "200"),
    Case(
        "a mark can be deleted",
        [*KEPT, get(method="DELETE"), Step("DELETE", "a", {"versionId": "{x_amz_version_id}"}), get()],
        "200 | hello",
        reads=[".+"],
    ),
    Case(
        "a version can be deleted",
        [*KEPT, Step("DELETE", "a", {"versionId": "{x_amz_version_id}"}), get()],
        "404 NoSuchKey | -",
        ["x-amz-delete-marker"],
    ),
    Case(
        "a mark cannot be read",
        [*KEPT, get(method="DELETE"), Step("GET", "a", {"versionId": "{x_amz_version_id}"})],
        "405 MethodNotAllowed",
    ),
    Case(
        "versions in a listing",
        [*KEPT, put(), get(method="DELETE"), Step("GET", None, {"versions": ""})],
        "200 | true,false,false | a",
        reads=["<IsLatest>(.*?)<", "<DeleteMarker><Key>(.*?)<"],
    ),
    Case(
        "a bucket with versions is not empty",
        [*KEPT, get(method="DELETE"), get(None, "DELETE")],
        "409 BucketNotEmpty",
    ),
]
ACCESS = [
    Case("without a signature", [Step("GET", "a", as_whom="nobody")], "403 AccessDenied"),
    Case("by somebody who is not known", [Step("GET", "a", as_whom="unknown")], "403 InvalidAccessKeyId"),
    Case("with another secret", [Step("GET", "a", as_whom="forger")], "403 SignatureDoesNotMatch"),
    Case(
        "for another region",
        [Step("GET", "a", as_whom="elsewhere")],
        "400 AuthorizationHeaderMalformed | us-east-1",
        reads=["<Region>(.*?)<"],
    ),
    Case(
        "a head for another region",
        [Step("HEAD", "a", as_whom="elsewhere")],
        "400 | us-east-1",
        ["x-amz-bucket-region"],
    ),
    Case("with a token that has expired", [Step("GET", "a", as_whom="late")], "400 ExpiredToken"),
    Case(
        "with what is no signature",
        [Step("GET", "a", {}, {"authorization": "Basic x"}, as_whom="nobody")],
        "400 AuthorizationHeaderMalformed",
    ),
]
CASES = [*WRITES, *READS, *DELETIONS, *LISTINGS, *PARTS, *BUCKETS, *VERSIONS]
