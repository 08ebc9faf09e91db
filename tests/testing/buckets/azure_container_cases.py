"""What Azure answers to other requests, by its documentation: https://learn.microsoft.com/rest/api/storageservices/."""

from __future__ import annotations

from tests.testing.buckets.azure_steps import (
    HELLO,
    MD5,
    MISSING,
    OTHER_MD5,
    block,
    commit,
    get,
    listed,
    of_container,
    put,
)
from tests.testing.buckets.cases import Case, Step

OLD = "Sat, 01 Jan 2000 00:00:00 GMT"

DELETIONS = [
    Case("a deletion", [put(), get(method="DELETE")], "202 | ", reads=[".+"]),
    Case("it is gone", [put(), get(method="DELETE"), get()], "404 BlobNotFound"),
    Case("a deletion of what is not there", [get(method="DELETE")], "404 BlobNotFound"),
    Case("a deletion if the ETag is that", [put(), get(method="DELETE", if_match="{etag}")], "202"),
    Case(
        "a deletion if the ETag is another",
        [put(), get(method="DELETE", if_match='"x"')],
        "412 ConditionNotMet",
    ),
    Case(
        "a deletion in a container that is not there",
        [Step("DELETE", "a", bucket=MISSING)],
        "404 ContainerNotFound",
    ),
]
TREE = [put(name) for name in ("a", "a/1", "a/2", "a/b/3", "b", "c/5", "ä/6")]
NAMES, PREFIXES = r"<Blob><Name>([^<]*)</Name>", r"<BlobPrefix><Name>([^<]*)</Name>"
MARKER = r"<NextMarker>(.*?)</NextMarker>"
LISTINGS = [
    Case("a listing", [*TREE, listed()], "200 | a,a/1,a/2,a/b/3,b,c/5,ä/6", reads=[NAMES]),
    Case("a listing of nothing", [listed()], "200 | ", reads=[NAMES]),
    Case("a listing below a prefix", [*TREE, listed(prefix="a/")], "200 | a/1,a/2,a/b/3", reads=[NAMES]),
    Case(
        "a listing with a delimiter",
        [*TREE, listed(delimiter="/")],
        "200 | a,b | a/,c/,ä/",
        reads=[NAMES, PREFIXES],
    ),
    Case(
        "below a prefix, too",
        [*TREE, listed(delimiter="/", prefix="a/")],
        "200 | a/1,a/2 | a/b/",
        reads=[NAMES, PREFIXES],
    ),
    Case(
        "a page", [*TREE, listed(maxresults="3")], "200 | a,a/1,a/2 | 3", reads=[NAMES, r"<MaxResults>(\d+)<"]
    ),
    Case(
        "the next page",
        [*TREE, listed(maxresults="3"), listed(maxresults="3", marker="{token}")],
        "200 | a/b/3,b,c/5",
        reads=[NAMES],
    ),
    Case(
        "the last page",
        [*TREE, listed(maxresults="6"), listed(maxresults="6", marker="{token}")],
        "200 | ä/6 | ",
        reads=[NAMES, MARKER],
    ),
    Case(
        "a page with a delimiter",
        [*TREE, listed(maxresults="2", delimiter="/")],
        "200 | a | a/",
        reads=[NAMES, PREFIXES],
    ),
    Case(
        "the page behind a prefix",
        [*TREE, listed(maxresults="2", delimiter="/"), listed(delimiter="/", marker="{token}")],
        "200 | b | c/,ä/",
        reads=[NAMES, PREFIXES],
    ),
    Case("a page of none", [listed(maxresults="0")], "400 OutOfRangeQueryParameterValue"),
    Case("a page of a text", [listed(maxresults="x")], "400 InvalidQueryParameterValue"),
    Case("names in XML", [put("a &<"), listed()], "200 | a &amp;&lt;", reads=[NAMES]),
    Case(
        "names that XML cannot hold",
        [put("a\x01"), listed()],
        '200 | <Name Encoded="true">a%01</Name>',
        reads=["<Blob>(<Name.*?</Name>)"],
    ),
    Case(
        "what a listing says of a blob",
        [put(), listed()],
        f"200 | 5 | BlockBlob | {MD5} | unlocked",
        reads=[r"<Content-Length>(\d+)<", "<BlobType>(.*?)<", "<Content-MD5>(.*?)<", "<LeaseStatus>(.*?)<"],
    ),
    Case(
        "and with its metadata",
        [put(x_ms_meta_token="7"), listed(include="metadata")],
        "200 | <token>7</token>",
        reads=["<Metadata>(.*?)</Metadata>"],
    ),
    Case(
        "and not otherwise",
        [put(x_ms_meta_token="7"), listed()],
        "200 | ",
        reads=["<Metadata>(.*?)</Metadata>"],
    ),
    Case(
        "a listing of a container that is not there",
        [Step("GET", None, {"restype": "container", "comp": "list"}, bucket=MISSING)],
        "404 ContainerNotFound",
    ),
]
BLOCKS = [
    Case("a block", [block(1)], f"201 | {MD5}", ["content-md5"]),
    Case("a block with another MD5", [block(1, content_md5=OTHER_MD5)], "400 Md5Mismatch"),
    Case("blocks", [block(1), block(2, b" you"), commit(1, 2), get()], "200 | hello you", reads=[".+"]),
    Case(
        "blocks in another order",
        [block(1), block(2, b" you "), commit(2, 1), get()],
        "200 |  you hello",
        reads=[".+"],
    ),
    Case(
        "a block that was sent twice counts once",
        [block(1, b"x"), block(1), commit(1), get()],
        "200 | hello",
        reads=[".+"],
    ),
    Case("nothing is there before the list", [block(1), get()], "404 BlobNotFound"),
    Case("nor is it listed", [block(1), listed()], "200 | ", reads=[NAMES]),
    Case(
        "a list, if nothing is there",
        [put(), block(1), commit(1, if_none_match="*")],
        "409 BlobAlreadyExists",
    ),
    Case("a list, if nothing is there, and nothing is", [block(1), commit(1, if_none_match="*")], "201"),
    Case("a list with a block that was not sent", [block(1), commit(1, 2)], "400 InvalidBlockList"),
    Case(
        "a list of blocks that the blob has",
        [block(1), block(2, b"x"), commit(1, 2), commit(1, place="Committed"), get()],
        "200 | hello",
        reads=[".+"],
    ),
    Case("a list of none", [commit(), get()], "200 | 0", ["content-length"]),
    Case(
        "a list that is no XML",
        [Step("PUT", "a", {"comp": "blocklist"}, {}, HELLO)],
        "400 InvalidXmlDocument",
    ),
    Case(
        "blocks do not outlast the list",
        [block(1), block(2), commit(1), commit(2, place="Uncommitted")],
        "400 InvalidBlockList",
    ),
    Case(
        "a block of another length of id",
        [block(1), Step("PUT", "a", {"comp": "block", "blockid": "MQ=="}, {}, HELLO)],
        "400 InvalidBlobOrBlock",
    ),
    Case(
        "metadata with a list",
        [block(1), commit(1, x_ms_meta_token="7", x_ms_blob_content_type="text/x"), get(method="HEAD")],
        "200 | 7 | text/x",
        ["x-ms-meta-token", "content-type"],
    ),
    Case(
        "a block into a container that is not there",
        [Step("PUT", "a", {"comp": "block", "blockid": "MQ=="}, {}, HELLO, bucket=MISSING)],
        "404 ContainerNotFound",
    ),
]
CONTAINERS = [
    Case(
        "a container's properties",
        [of_container("GET")],
        "200 | unlocked | available | false",
        ["x-ms-lease-status", "x-ms-lease-state", "x-ms-has-immutability-policy"],
    ),
    Case("a head of a container", [of_container("HEAD")], "200"),
    Case(
        "a head of a container that is not there",
        [Step("HEAD", None, {"restype": "container"}, bucket=MISSING)],
        "404 ContainerNotFound",
    ),
    Case("a container that is there", [of_container("PUT")], "409 ContainerAlreadyExists"),
    Case("a deletion of a container", [put(), of_container("DELETE")], "202"),
    Case(
        "a container of a name that is none",
        [Step("GET", None, {"restype": "container"}, bucket="A_B")],
        "400 InvalidResourceName",
    ),
]
ACCESS = [
    Case("by somebody who is not known", [Step("GET", "a", as_whom="unknown")], "403 AuthenticationFailed"),
    Case("with another key", [Step("GET", "a", as_whom="forger")], "403 AuthenticationFailed"),
    Case("too late", [Step("GET", "a", as_whom="late")], "403 AuthenticationFailed"),
    Case("without credentials", [Step("GET", "a", as_whom="nobody")], "401 NoAuthenticationInformation"),
    Case("with a token", [put(), Step("GET", "a", as_whom="bearer")], "200"),
    Case(
        "with a token, a range in the other header",
        [put(), Step("GET", "a", {}, {"range": "bytes=1-2"}, as_whom="bearer")],
        "206 | bytes 1-2/5",
        ["content-range"],
    ),
    Case(
        "with a token, ranges in both headers",
        [put(), Step("GET", "a", {}, {"range": "bytes=0-0", "x-ms-range": "bytes=1-2"}, as_whom="bearer")],
        "206 | bytes 1-2/5",
        ["content-range"],
    ),
]
