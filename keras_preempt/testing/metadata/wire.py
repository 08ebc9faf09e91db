"""The wire of the fake metadata servers: connections, the record of questions, and the faults that meet them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from keras_preempt.testing.loopback import LoopbackServer
from keras_preempt.testing.metadata.faults import Fault, MetadataFaults

_SLOW_SECONDS = 0.05  # between two bytes
_HUGE_BYTES = 1 << 20


@dataclass
class MetadataRequest:
    """One question that a fake metadata server received.

    Attributes:
        method: The HTTP method.
        path: The path, with its query.
        headers: By name in lower case.
        status: The HTTP status that was sent; None while the question is open, and if nothing was sent.
        fault: What was put in its way, or None.
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
    """One question as the three clouds see it; `path` is without its query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class MetadataServer(LoopbackServer):
    """Answers on 127.0.0.1; `stop` ends every connection and every thread.

    Args:
        port: Where to listen; 0 for any free port.
        answer: Answers one question; may take its time, and returns early once `stopping` is set.
        faults: What goes wrong.
    """

    request_queue_size = 64
    title = "FakeMetadata"
    thread_name = "fake-metadata"

    def __init__(self, port: int, answer: Callable[[Question], Reply], faults: MetadataFaults) -> None:
        super().__init__(port, _Handler)
        self.answer = answer
        self.faults = faults
        self._requests: list[MetadataRequest] = []
        self._asked = threading.Condition(self._lock)

    def end_connections(self) -> None:
        """Resets every connection: a question that is held open gets no answer."""
        self.drop_connections()

    def note(self, request: MetadataRequest) -> None:
        """Takes a question into the record."""
        with self._lock:
            self._requests.append(request)
            self._asked.notify_all()

    def requests(self) -> list[MetadataRequest]:
        """The record, as copies."""
        with self._lock:
            return [replace(request) for request in self._requests]

    def wait_for_requests(self, count: int, match: str, timeout: float) -> bool:
        """Waits until so many questions whose text contains `match` have come; says whether they have."""

        def enough() -> bool:
            return sum(match in request.text for request in self._requests) >= count

        with self._lock:
            return self._asked.wait_for(enough, timeout)


class _Handler(BaseHTTPRequestHandler):
    """One connection: any number of questions, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: MetadataServer

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: `FakeMetadata.requests` tells what happened."""

    def version_string(self) -> str:
        """What the header Server says; by this name client libraries know that they are not in a cloud."""
        return "FakeMetadata"

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > 65536:
            self.send_error(400, "Expected a short body")
            self.close_connection = True
            return
        self.rfile.read(int(length))
        request = MetadataRequest(self.command, self.path, headers)
        fault = self.server.faults.choose(request.text)
        request.fault = fault.kind if fault else None
        self.server.note(request)
        if fault is not None and fault.kind == "stall":
            self.server.faults.wait(fault, self.server.stopping)
        if self.server.stopping.is_set() or request.fault == "reset":
            self._break()
            return
        reply = self._fault_reply(fault) if fault else None
        if reply is None:
            parts = urlsplit(self.path)
            reply = self.server.answer(
                Question(self.command, parts.path, dict(parse_qsl(parts.query)), headers)
            )
        if self.server.stopping.is_set():
            self._break()
            return
        self._send(reply, request)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve

    def _fault_reply(self, fault: Fault) -> Reply | None:
        if fault.kind.isdigit():
            return Reply(int(fault.kind), b"the fake server was told to fail")
        if fault.kind == "rubbish":
            return Reply(200, b"<html>\xff\xfe welcome to the hotel</html>", {"ETag": "rubbish", **_FLAVOR})
        if fault.kind == "huge":
            return Reply(200, b"[" * _HUGE_BYTES, {"ETag": "huge", **_FLAVOR})
        if fault.kind == "redirect":
            return Reply(302, b"", {"Location": f"http://127.0.0.1:{self.server.port}/elsewhere", **_FLAVOR})
        return None

    def _send(self, reply: Reply, request: MetadataRequest) -> None:
        request.status = reply.status
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if request.fault == "truncated":
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self._break()
        elif request.fault == "slow":
            for place in range(len(reply.body)):
                self.wfile.write(reply.body[place : place + 1])
                if self.server.stopping.wait(_SLOW_SECONDS):
                    return
        else:
            self.wfile.write(reply.body)

    def _break(self) -> None:
        """Ends the connection with a reset."""
        self.close_connection = True
        self.server.reset(self.connection)


_FLAVOR = {"Metadata-Flavor": "Google"}
