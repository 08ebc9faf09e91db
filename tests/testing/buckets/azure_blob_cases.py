"""What Azure answers to requests for one blob, by its documentation: https://learn.microsoft.com/rest/api/storageservices/."""

from __future__ import annotations

from tests.testing.buckets.azure_steps import (
    CRC64,
    HELLO,
    MD5,
    MISSING,
    ODD_NAME,
    OTHER_CRC64,
    OTHER_MD5,
    get,
    put,
)
from tests.testing.buckets.cases import Case, Step

OLD = "Sat, 01 Jan 2000 00:00:00 GMT"

WRITES = [
    Case("a put", [put()], f"201 | {MD5} | true", ["content-md5", "x-ms-request-server-encrypted"]),
    Case("a put of nothing", [put(body=b""), get()], "200 | 0", ["content-length"]),
    Case("a put where nothing is, if nothing is there", [put(if_none_match="*")], "201"),
    Case(
        "a put where something is, if nothing is there",
        [put(), put(if_none_match="*")],
        "409 BlobAlreadyExists",
    ),
    Case(
        "what was there stays", [put(), put(body=b"x", if_none_match="*"), get()], "200 | hello", reads=[".+"]
    ),
    Case("a put that replaces", [put(), put(body=b"new"), get()], "200 | new", reads=[".+"]),
    Case("a put if the ETag is that", [put(), put(body=b"x", if_match="{etag}")], "201"),
    Case("a put if the ETag is another", [put(), put(if_match='"other"')], "412 ConditionNotMet"),
    Case("a put if an ETag matches where nothing is", [put(if_match='"other"')], "412 ConditionNotMet"),
    Case("a put unless the ETag is that", [put(), put(if_none_match="{etag}")], "412 ConditionNotMet"),
    Case("a put unless the ETag is another", [put(), put(if_none_match='"other"')], "201"),
    Case("a put if nothing has changed", [put(), put(if_unmodified_since=OLD)], "412 ConditionNotMet"),
    Case(
        "a put after a deletion, if nothing is there",
        [put(), get(method="DELETE"), put(if_none_match="*")],
        "201",
    ),
    Case(
        "a put into a container that is not there",
        [Step("PUT", "a", {}, {"x-ms-blob-type": "BlockBlob"}, HELLO, bucket=MISSING)],
        "404 ContainerNotFound",
    ),
    Case("a put without a type", [Step("PUT", "a", {}, {}, HELLO)], "400 MissingRequiredHeader"),
    Case("a put of a type that is none", [put(x_ms_blob_type="Blob")], "400 InvalidHeaderValue"),
    Case("a put with its MD5", [put(content_md5=MD5)], "201"),
    Case("a put with another MD5", [put(content_md5=OTHER_MD5)], "400 Md5Mismatch"),
    Case("nothing is stored of it", [put(content_md5=OTHER_MD5), get()], "404 BlobNotFound"),
    Case("a put with what is no MD5", [put(content_md5="hello")], "400 InvalidMd5"),
    Case("a put with the MD5 of the blob", [put(x_ms_blob_content_md5=MD5)], "201"),
    Case("a put with another MD5 of the blob", [put(x_ms_blob_content_md5=OTHER_MD5)], "400 Md5Mismatch"),
    Case("a put with its CRC64", [put(x_ms_content_crc64=CRC64)], "201"),
    Case("a put with another CRC64", [put(x_ms_content_crc64=OTHER_CRC64)], "400 Crc64Mismatch"),
    Case(
        "metadata and headers come back",
        [
            put(x_ms_meta_token="7", x_ms_blob_content_type="text/x", x_ms_blob_cache_control="no-store"),
            get(method="HEAD"),
        ],
        "200 | 7 | text/x | no-store",
        ["x-ms-meta-token", "content-type", "cache-control"],
    ),
    Case(
        "the type of what has none",
        [put(), get(method="HEAD")],
        "200 | application/octet-stream",
        ["content-type"],
    ),
    Case(
        "metadata of a name that is none",
        [Step("PUT", "a", {}, {"x-ms-blob-type": "BlockBlob", "x-ms-meta-a-b": "7"}, HELLO)],
        "400 InvalidMetadata",
    ),
    Case("too much metadata", [put(x_ms_meta_much="x" * 8200)], "400 MetadataTooLarge"),
    Case(
        "other metadata",
        [
            put(x_ms_meta_a="1"),
            Step("PUT", "a", {"comp": "metadata"}, {"x-ms-meta-b": "2"}),
            get(method="HEAD"),
        ],
        "200 | - | 2 | 5",
        ["x-ms-meta-a", "x-ms-meta-b", "content-length"],
    ),
    Case(
        "other metadata is another ETag",
        [
            put(),
            Step("PUT", "a", {"comp": "metadata"}, {"if-match": "{etag}"}),
            Step("PUT", "a", {"comp": "metadata"}, {"if-match": '"x"'}),
        ],
        "412 ConditionNotMet",
    ),
    Case("a name with every character", [put(ODD_NAME), get(ODD_NAME)], "200 | hello", reads=[".+"]),
    Case("a name of empty folders", [put("a//b"), get("a//b")], "200 | hello", reads=[".+"]),
    Case("the longest name", [put("k" * 1024)], "201"),
]
READS = [
    Case(
        "a get",
        [put(), get()],
        f"200 | 5 | bytes | BlockBlob | {MD5} | hello",
        ["content-length", "accept-ranges", "x-ms-blob-type", "content-md5"],
        [".+"],
    ),
    Case("a get of what is not there", [get()], "404 BlobNotFound"),
    Case(
        "a head",
        [put(), get(method="HEAD")],
        "200 | 5 | BlockBlob | unlocked | available | true | Hot | ",
        [
            "content-length",
            "x-ms-blob-type",
            "x-ms-lease-status",
            "x-ms-lease-state",
            "x-ms-server-encrypted",
            "x-ms-access-tier",
        ],
        [".+"],
    ),
    Case("a head of what is not there", [get(method="HEAD")], "404 BlobNotFound | ", reads=[".+"]),
    Case(
        "a range",
        [put(), get(x_ms_range="bytes=1-2")],
        f"206 | bytes 1-2/5 | 2 | - | {MD5} | el",
        ["content-range", "content-length", "content-md5", "x-ms-blob-content-md5"],
        [".+"],
    ),
    Case(
        "a range with its MD5",
        [put(), get(x_ms_range="bytes=0-4", x_ms_range_get_content_md5="true")],
        f"206 | {MD5}",
        ["content-md5"],
    ),
    Case(
        "a range to the end",
        [put(), get(x_ms_range="bytes=3-")],
        "206 | bytes 3-4/5 | lo",
        ["content-range"],
        [".+"],
    ),
    Case(
        "a range beyond the end",
        [put(), get(x_ms_range="bytes=3-99")],
        "206 | bytes 3-4/5 | lo",
        ["content-range"],
        [".+"],
    ),
    Case("a range behind the end", [put(), get(x_ms_range="bytes=5-")], "416 InvalidRange"),
    Case("a range of nothing", [put(body=b""), get(x_ms_range="bytes=0-1")], "416 InvalidRange"),
    Case("a get if the ETag is that", [put(), get(if_match="{etag}")], "200"),
    Case("a get if the ETag is another", [put(), get(if_match='"x"')], "412 ConditionNotMet"),
    Case("a get unless the ETag is that", [put(), get(if_none_match="{etag}")], "304 ConditionNotMet"),
    Case("a get unless the ETag is another", [put(), get(if_none_match='"x"')], "200"),
    Case("a get if nothing has changed", [put(), get(if_unmodified_since=OLD)], "412 ConditionNotMet"),
    Case(
        "a get if something has changed",
        [put(), get(if_modified_since="{last_modified}")],
        "304 ConditionNotMet",
    ),
    Case(
        "a get out of a container that is not there",
        [Step("GET", "a", bucket=MISSING)],
        "404 ContainerNotFound",
    ),
    Case(
        "what identifies a request comes back",
        [put(x_ms_client_request_id="mine")],
        "201 | mine",
        ["x-ms-client-request-id"],
    ),
]
