"""Where moto 5.2.5 and Azurite 3.37.0 answer otherwise than the fakes, by the names of cases, and who is right."""

from __future__ import annotations

_SUMS = "moto computes sums only for the clients of AWS; S3 checks and returns what a header gives"

MOTO: dict[str, tuple[str, str]] = {
    "a put unless the ETag is that": ("200", "S3 takes no If-None-Match but * on writes"),
    "a put with another MD5": ("200", "S3 refuses an upload that is not what its sender computed"),
    "a put with what is no MD5": ("200", "S3 refuses an upload that is not what its sender computed"),
    "a put with its crc32": ("200 | -", _SUMS),
    "a put with its crc32c": ("200 | -", _SUMS),
    "a put with its crc64nvme": ("200 | -", _SUMS),
    "a put with its sha1": ("200 | -", _SUMS),
    "a put with its sha256": ("200 | -", _SUMS),
    "a put with another crc32c": ("200", _SUMS),
    "nothing is stored of it": ("200", _SUMS),
    "a put with another sha256": ("200", _SUMS),
    "a put with what is no crc32": ("200", _SUMS),
    "sums come when they are asked for": ("200 | -", _SUMS),
    "a put whose payload is not what was signed": ("200", "moto checks no signature"),
    "a put in chunks with another sum": ("200", _SUMS),
    "a put in chunks of another size": ("200", "S3 refuses a body that is not as long as announced"),
    "too much metadata": ("200", "S3 takes 2 KB"),
    "a longer key": ("200", "S3 takes 1,024 bytes"),
    "deletions together, quietly": ("200 | a", "S3 lists only failures then"),
    "deletions by what is no XML": ("500", "moto fails itself"),
    "more deletions than a thousand": ("200", "S3 takes 1,000"),
    "a page of a text": ("500", "moto fails itself"),
    "a token that is none": ("200", "S3 refuses a token that it did not give"),
    "a part of an upload that was given up": ("500", "moto fails itself"),
    "a part of an upload that is none": ("500", "moto fails itself"),
    "a part of a number that is none": ("404 NoSuchUpload", "S3 names the argument"),
    "an end with parts in another order": ("200", "S3 wants them in ascending order"),
    "an end twice": ("200", "S3 documents NoSuchUpload for an upload that was completed"),
    "behind it nothing is seen": ("404 NoSuchKey | -", "S3 says that there is a mark"),
    "a mark cannot be read": ("404 NoSuchVersion", "S3 documents 405"),
    "versions in a listing": ("200 | false,false,true | ", "S3 lists the newest version first"),
}
"""The outcomes of cases of S3, and why the fake differs. Signatures, which moto does not check, are left out."""

_KEY = "the code for wrong credentials that Azure documents is AuthenticationFailed"
_NO_CODE = "Azurite refuses it before the code that knows errors"

AZURITE: dict[str, tuple[str, str]] = {
    "a put without a type": ("400", _NO_CODE),
    "a put of a type that is none": ("400", _NO_CODE),
    "too much metadata": ("201", "Azure takes 8 KB"),
    "a range behind the end": ("206", "Azure has no such range"),
    "a page of none": ("400", _NO_CODE),
    "a page of a text": ("400", _NO_CODE),
    "names that XML cannot hold": ("500 | ", "Azure encodes such names since version 2021-02-12"),
    "a block": ("201 | -", "Azure returns the MD5 of each block"),
    "a list that is no XML": ("400", _NO_CODE),
    "by somebody who is not known": ("403 AuthorizationFailure", _KEY),
    "with another key": ("403 AuthorizationFailure", _KEY),
    "too late": ("404 BlobNotFound", "Azure takes requests of the last 15 minutes"),
    "without credentials": ("403 AuthorizationFailure", "Azure asks for credentials with 401"),
    "with a token": ("403 AuthorizationFailure", "Azurite takes tokens only over TLS"),
    "with a token, a range in the other header": ("403 AuthorizationFailure | -", "the same"),
    "with a token, ranges in both headers": ("403 AuthorizationFailure | -", "the same"),
}
"""The outcomes of cases of Azure, and why the fake differs."""
