"""What S3 answers to other requests, by its documentation: https://docs.aws.amazon.com/AmazonS3/latest/API/."""

from __future__ import annotations

import hashlib

from tests.testing.buckets.cases import Case, Step
from tests.testing.buckets.s3_steps import (
    BEGIN,
    COUNT,
    ETAG,
    HELLO,
    HELLO_PART,
    KEPT,
    KEYS,
    MD5,
    MISSING,
    MORE,
    PART,
    PART_ETAG,
    PREFIXES,
    TREE,
    completion,
    deletion,
    get,
    listed,
    part,
    put,
)

ETAG_OF_BOTH = f'"{hashlib.md5(hashlib.md5(PART).digest() + hashlib.md5(HELLO).digest()).hexdigest()}-2"'

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
        f"200 | {len(PART) + 5} | {ETAG_OF_BOTH}",
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
        [BEGIN, part(1, PART), part(2, PART), completion((2, PART_ETAG), (1, PART_ETAG))],
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
