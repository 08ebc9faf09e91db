"""What the fakes have in common: an HTTP server on 127.0.0.1 whose every connection and thread ends when it is told to.

A fake is a `Fake`, which runs a `LoopbackServer`, whose connections are served by a `Handler`, which notes each request
in a `RequestLog` and sends a `Reply`.
"""

from __future__ import annotations

import abc
import contextlib
import json
import socket
import struct
import threading
from copy import copy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing discards and sends RST
_JOIN_SECONDS = 10.0
_LOOK_SECONDS = 0.02  # Between two looks at whether to stop.


class LoopbackServer(TCPServer):
    """Serves each connection in a thread of its own; `stop` waits for all of them.

    Args:
        port: Where to listen; 0 for any free port.
        handler: Serves one connection.

    Attributes:
        title: What users call the fake.
        thread_name: What the names of its threads begin with.
        stopping: Set once the server is told to stop; whatever waits should look at it.
    """

    allow_reuse_address = True
    title = "LoopbackServer"
    thread_name = "loopback"

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._reset: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        self._accepting = threading.Thread(
            target=self.serve_forever, args=(_LOOK_SECONDS,), name=self.thread_name, daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Begins to accept connections, in a thread."""
        self._accepting.start()

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
        self.end_connections()
        for thread in threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise RuntimeError(
                    f"Expected every thread of {self.title} to end within {_JOIN_SECONDS:.0f} s. Received: "
                    f"{thread.name} is still alive. This is a bug in {self.title}; please report it."
                )

    def end_connections(self) -> None:
        """Closes every connection that is open now, in an orderly way."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def drop_connections(self) -> None:
        """Resets every connection that is open now."""
        with self._lock:
            for connection in self._open:
                self._reset.add(connection)
                with contextlib.suppress(OSError):  # It is closed already.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hands a connection to a thread of its own, which `stop` waits for."""
        thread = threading.Thread(
            target=self._serve,
            args=(request, client_address),
            name=f"{self.thread_name}-connection",
            daemon=True,
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
            _shut(request)
        request.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It is closed already.
        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One connection: any number of requests, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LoopbackServer

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the `requests` of the fake tell what happened."""

    def version_string(self) -> str:
        """What the header Server says; by this name client libraries know that they are not in a cloud."""
        return self.server.title

    def headers_in_lower_case(self) -> dict[str, str]:
        """The headers of the request, by names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def send_head(self, reply: Reply) -> bool:
        """Sends the status and the headers; returns whether a body follows."""
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        return self.command != "HEAD"

    def break_off(self, *, reset: bool) -> None:
        """Ends the connection after this request, with a reset or in an orderly way."""
        self.close_connection = True
        if reset:
            self.server.reset(self.connection)


@dataclass
class Reply:
    """An answer: its status, body and headers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: object, status: int = 200) -> Reply:
        """An answer that is a JSON document."""
        return cls(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class _Noted(Protocol):
    @property
    def text(self) -> str: ...


R = TypeVar("R", bound=_Noted)


class RequestLog(Generic[R]):
    """All requests, in the order of their arrival; safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[R] = []

    def add(self, request: R) -> None:
        """Adds a request; its fields may still be filled in."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def snapshot(self) -> list[R]:
        """Returns copies, so that what a test compares does not change under it."""
        with self._changed:
            return [copy(request) for request in self._requests]

    def clear(self) -> None:
        """Forgets all requests so far."""
        with self._changed:
            self._requests.clear()

    def wait_for(self, count: int, match: str, timeout: float, first: int = 0) -> bool:
        """Waits until so many requests have come whose text contains `match`; returns whether they have.

        Args:
            count: How many.
            match: What their text contains.
            timeout: In seconds.
            first: How many requests to skip at the beginning of the log.
        """

        def enough() -> bool:
            return sum(match in request.text for request in self._requests[first:]) >= count

        with self._changed:
            return self._changed.wait_for(enough, timeout)


S = TypeVar("S", bound=LoopbackServer)
F = TypeVar("F", bound="Fake[Any]")


class Fake(abc.ABC, Generic[S]):
    """Serves for as long as a ``with`` block lasts, on 127.0.0.1 only; what it holds outlives the block."""

    _server: S | None = None

    @abc.abstractmethod
    def _new_server(self) -> S:
        """A server that has not been started."""

    def _stop(self, server: S) -> None:
        server.stop()

    def __enter__(self: F) -> F:
        """Starts to serve."""
        if self._server is not None:
            raise RuntimeError(
                f"Expected a {type(self).__name__} that is not running. Received: one that is. Use one `with` at a "
                "time."
            )
        server = self._new_server()
        server.start()
        self._server = server
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends every connection and every thread."""
        server = self._running()
        self._server = None
        self._stop(server)

    def _running(self) -> S:
        if self._server is None:
            name = type(self).__name__
            raise RuntimeError(
                f"Expected a {name} that is running. Received: one that is not. Use it inside `with {name}() as fake:`."
            )
        return self._server
