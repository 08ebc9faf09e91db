"""Requests to a bucket, and what a service answers: one table for the fake and for what it is held against."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, urlsplit


@dataclass(frozen=True)
class Step:
    """A request below a bucket or container. `{name}` in any of it stands for what an answer before it had."""

    method: str
    key: str | None = ""  # Not encoded; None for the bucket itself.
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str = b""
    as_whom: str = ""  # With which credentials; by default with those that are right.
    bucket: str = ""  # By default the one of the case.


@dataclass(frozen=True)
class Case:
    """Steps, the last of which is judged by its answer.

    Attributes:
        expect: The status, the code of an error, the headers in `shows` and what `reads` finds in the body, with bars
            between them.
        shows: Names of headers, in lower case.
        reads: Regular expressions; of each, everything that it finds in the body.
    """

    name: str
    steps: Sequence[Step]
    expect: str
    shows: Sequence[str] = ()
    reads: Sequence[str] = ()

    def __str__(self) -> str:
        return self.name


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


Send = Callable[[Step], Answer]
"""Sends a request as a service wants it signed."""

_KEPT = {
    "upload": re.compile(r"<UploadId>([^<]+)<"),
    "token": re.compile(r"<(?:NextContinuationToken|NextMarker)>([^<]+)<"),
    "code": re.compile(r"<Code>([^<]+)<"),
}


def outcome(case: Case, send: Send) -> str:
    """What the answer to the last step of a case shows."""
    kept: dict[str, str] = {}
    for step in case.steps:
        answer = send(_filled(step, kept))
        text = answer.body.decode("utf-8", "replace")
        for name, pattern in _KEPT.items():
            if found := pattern.search(text):
                kept[name] = found[1]
        etag = answer.headers.get("etag", "")
        kept["etag"] = etag or kept.get("etag", "")
        for name in ("x-amz-version-id", "x-ms-version-id", "last-modified"):
            if name in answer.headers:
                kept[name.replace("-", "_")] = answer.headers[name]
    code = answer.headers.get("x-ms-error-code", "")
    if not code and answer.status >= 400 and (found := _KEPT["code"].search(text)):
        code = found[1]
    parts = [f"{answer.status} {code}".strip()]
    parts += [answer.headers.get(name, "-") for name in case.shows]
    parts += [",".join(re.findall(pattern, text, re.DOTALL)) for pattern in case.reads]
    return " | ".join(parts)


def _filled(step: Step, kept: Mapping[str, str]) -> Step:
    def fill(text: str) -> str:
        for name, value in kept.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    return Step(
        step.method,
        step.key,
        {name: fill(value) for name, value in step.query.items()},
        {name: fill(value) for name, value in step.headers.items()},
        fill(step.body) if isinstance(step.body, str) else step.body,
        step.as_whom,
        step.bucket,
    )


def url_of(endpoint: str, bucket: str, step: Step) -> str:
    path = f"/{step.bucket or bucket}"
    if step.key:
        path += f"/{quote(step.key, safe='/~')}"
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" if value else quote(name, safe="")
        for name, value in step.query.items()
    )
    return endpoint + path + (f"?{query}" if query else "")


def exchange(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """One request on a connection of its own, exactly as it is given."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        connection.request(method, url.split(parts.netloc, 1)[1], body, dict(headers))
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, received, response.read())
    finally:
        connection.close()
