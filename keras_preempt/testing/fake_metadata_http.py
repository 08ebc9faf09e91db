"""The wire of the fake metadata servers: connections, the record of questions, and the faults that meet them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from keras_preempt.testing.fake_metadata_faults import Fault, MetadataFaults

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing discards and sends RST
_JOIN_SECONDS = 10.0
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


class MetadataServer(TCPServer):
    """Answers on 127.0.0.1; `stop` ends every connection and every thread.

    Args:
        port: Where to listen; 0 for any free port.
        answer: Answers one question; may take its time, and returns early once `stopping` is set.
        faults: What goes wrong.
    """

    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, port: int, answer: Callable[[Question], Reply], faults: MetadataFaults) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.faults = faults
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._requests: list[MetadataRequest] = []
        self._asked = threading.Condition(self._lock)
        self._open: set[socket.socket] = set()
        self._reset: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        self._accepting = threading.Thread(target=self._accept, name="fake-metadata", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Begins to accept connections, in a thread."""
        self._accepting.start()

    def _accept(self) -> None:
        self.serve_forever(poll_interval=0.02)

    def stop(self) -> None:
        """Closes everything; returns when no thread is left.

        Raises:
            RuntimeError: A thread did not end within 10 seconds.
        """
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            threads = [self._accepting, *self._serving]
        self.drop_connections()
        for thread in threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise RuntimeError(
                    f"Expected every thread of FakeMetadata to end within {_JOIN_SECONDS:.0f} s. Received: "
                    f"{thread.name} is still alive. This is a bug in FakeMetadata; please report it."
                )

    def drop_connections(self) -> None:
        """Resets every connection that is open now."""
        with self._lock:
            for connection in self._open:
                self._reset.add(connection)
                with contextlib.suppress(OSError):  # It is closed already.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    connection.shutdown(socket.SHUT_RDWR)

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

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hands a connection to a thread of its own, which `stop` waits for."""
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="fake-metadata-connection", daemon=True
        )
        with self._lock:
            self._open.add(request)
            self._serving.add(thread)
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # The client went away, or a fault closed the connection: nobody is left to tell.
        finally:
            self.shutdown_request(request)
            with self._lock:
                self._serving.discard(threading.current_thread())

    def reset(self, connection: socket.socket) -> None:
        """Lets the connection end with a reset instead of an orderly close."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        with self._lock:
            self._reset.add(connection)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection, with a reset if one was asked for."""
        with self._lock:
            self._open.discard(request)
            reset = request in self._reset
            self._reset.discard(request)
        if not reset:
            with contextlib.suppress(OSError):  # It is closed already.
                request.shutdown(socket.SHUT_RDWR)
        request.close()


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
