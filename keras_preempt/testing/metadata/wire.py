"""The HTTP side of the fake metadata servers: connections, questions, and the faults that happen to them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar
from urllib.parse import parse_qsl, urlsplit

from keras_preempt.testing.server import Handler, LoopbackServer, OrderedFaults, Reply, RequestLog

_SLOW_SECONDS = 0.05  # between two bytes
_HUGE_BYTES = 1 << 20
METADATA_FAULTS = ("huge", "redirect", "reset", "rubbish", "slow", "stall", "truncated")
"""Kinds of fault, beside any HTTP status from 400 to 599 as text.

- ``"huge"``: an answer of a MiB.
- ``"redirect"``: 302 to another path.
- ``"reset"``: the connection is reset instead of answered.
- ``"rubbish"``: status 200 with bytes that are no text.
- ``"slow"``: the right answer, 20 bytes a second.
- ``"stall"``: silence, then the right answer.
- ``"truncated"``: half of the right answer, then a reset.
"""

GOOGLE_FLAVOR = {"Metadata-Flavor": "Google"}
"""The header of everything that Google's server says."""


@dataclass
class MetadataRequest:
    """One question that a fake metadata server received.

    Attributes:
        method: The HTTP method.
        path: The path, with its query.
        headers: By name in lower case.
        status: The HTTP status that was sent; None while the question is open, and if nothing was sent.
        fault: The kind of the fault that happened to it, or None.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    status: int | None = None
    fault: str | None = None

    @property
    def text(self) -> str:
        """``METHOD path?query``: what the `match` of a fault is looked for in."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Question:
    """One question as the clouds see it; `path` is without its query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


V = TypeVar("V")


class FakeCloud(abc.ABC):
    """What one cloud's metadata server says, which can be changed at any time.

    Attributes:
        root: What the paths that it answers begin with.
        variables: The environment variables that point clients to a server, with {} for its ``host:port``.
    """

    root: ClassVar[str]
    variables: ClassVar[dict[str, str]]

    @abc.abstractmethod
    def answer(self, question: Question) -> Reply:
        """Answers a question, possibly after a long wait."""


def below(values: Mapping[str, V], path: str) -> dict[str, V]:
    """The values in a folder and its folders, by what follows the folder's name."""
    folder = path if path.endswith("/") or not path else f"{path}/"
    return {key[len(folder) :]: value for key, value in values.items() if key.startswith(folder)}


def entry_names(keys: Iterable[str]) -> list[str]:
    """The names directly in a folder, given the keys in it and its folders; those of folders end with a slash."""
    return sorted({key.partition("/")[0] + ("/" if "/" in key else "") for key in keys})


class MetadataServer(LoopbackServer):
    """Asks `answer`, which may take its time, and returns early once `stopping` is set."""

    request_queue_size = 64
    title = "FakeMetadata"
    thread_name = "fake-metadata"

    def __init__(
        self,
        port: int,
        answer: Callable[[Question], Reply],
        faults: OrderedFaults,
        log: RequestLog[MetadataRequest],
    ) -> None:
        super().__init__(port, _Handler)
        self.answer = answer
        self.faults = faults
        self.log = log

    def end_connections(self, *, reset: bool = True) -> None:
        """Resets every connection: a question that is held open gets no answer."""
        super().end_connections(reset=reset)


class _Handler(Handler):
    server: MetadataServer

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > 65536:
            self.send_error(400, "Expected a short body")
            self.close_connection = True
            return
        self.rfile.read(int(length))
        request = MetadataRequest(self.command, self.path, headers)
        fault = self.server.faults.take(lambda fault: fault.match in request.text)
        request.fault = fault.kind if fault else None
        self.server.log.add(request)
        if fault is not None and fault.kind == "stall":
            self.server.faults.wait(fault, self.server.stopping)
        if self.server.stopping.is_set() or request.fault == "reset":
            self.break_off(reset=True)
            return
        parts = urlsplit(self.path)
        match request.fault:
            case str(status) if status.isdigit():
                reply = Reply(int(status), b"the fake server was told to fail")
            case "rubbish":
                page = b"<html>\xff\xfe welcome to the hotel</html>"
                reply = Reply(200, page, {"ETag": "rubbish", **GOOGLE_FLAVOR})
            case "huge":
                reply = Reply(200, b"[" * _HUGE_BYTES, {"ETag": "huge", **GOOGLE_FLAVOR})
            case "redirect":
                elsewhere = f"http://127.0.0.1:{self.server.port}/elsewhere"
                reply = Reply(302, b"", {"Location": elsewhere, **GOOGLE_FLAVOR})
            case _:
                question = Question(self.command, parts.path, dict(parse_qsl(parts.query)), headers)
                reply = self.server.answer(question)
        if self.server.stopping.is_set():
            self.break_off(reset=True)
            return
        self._send(reply, request)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve

    def _send(self, reply: Reply, request: MetadataRequest) -> None:
        request.status = reply.status
        if not self.send_head(reply):
            return
        if request.fault == "truncated":
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self.break_off(reset=True)
        elif request.fault == "slow":
            for place in range(len(reply.body)):
                self.wfile.write(reply.body[place : place + 1])
                if self.server.stopping.wait(_SLOW_SECONDS):
                    return
        else:
            self.wfile.write(reply.body)
