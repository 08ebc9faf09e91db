"""What the fakes have in common: an HTTP server on 127.0.0.1 that ends all its connections and threads when it stops.

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
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, Generic, TypeVar

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing discards and sends RST
_JOIN_SECONDS = 10.0
_POLL_SECONDS = 0.02


class LoopbackServer(TCPServer):
    """Serves each connection in a thread of its own; `stop` waits for all of them."""

    allow_reuse_address = True
    title = "LoopbackServer"  # What users call the fake.
    thread_name = "loopback"  # The prefix of its threads' names.

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.port = int(self.socket.getsockname()[1])
        self.stopping = threading.Event()  # Whatever waits should look at it.
        self._lock = threading.RLock()
        self._open: set[socket.socket] = set()
        self._reset: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        self._run(self.thread_name, self.serve_forever, _POLL_SECONDS)

    def _run(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def stop(self) -> None:
        """Closes everything; returns when no thread is left, or raises RuntimeError after 10 seconds."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            threads = list(self._threads)
        self.end_connections()
        for thread in threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise RuntimeError(
                    f"Expected every thread of {self.title} to end within {_JOIN_SECONDS:.0f} s. Received: "
                    f"{thread.name} is still alive. This is a bug in {self.title}; please report it."
                )

    def end_connections(self, *, reset: bool = False) -> None:
        """Closes every connection that is open now, in an orderly way or with a reset."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):  # It is closed already.
                    if reset:
                        self.reset(connection)
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        self._run(f"{self.thread_name}-connection", self._serve, request, client_address)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # The client went away, or a fault closed the connection: nobody is left to tell.
        finally:
            self.shutdown_request(request)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def reset(self, connection: socket.socket) -> None:
        """Lets the connection end with a reset instead of an orderly close."""
        with self._lock:
            self._reset.add(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            reset = request in self._reset
            self._reset.discard(request)
        if not reset:
            with contextlib.suppress(OSError):  # It is closed already.
                request.shutdown(socket.SHUT_RDWR)
        request.close()


class Handler(BaseHTTPRequestHandler):
    """One connection: any number of requests, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LoopbackServer

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the fake's `requests` show what happened."""

    def version_string(self) -> str:
        """The header Server; by this name client libraries know that they are not in a cloud."""
        return self.server.title

    def send_head(self, reply: Reply) -> bool:
        """Sends the status and the headers; returns whether a body follows."""
        self.send_response(reply.status, reply.phrase or None)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        return self.command != "HEAD"

    def break_off(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.server.reset(self.connection)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    phrase: str = ""  # In the status line; what HTTP calls the status if empty.

    @classmethod
    def of(cls, document: object, status: int = 200) -> Reply:
        return cls(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


@dataclass
class Fault:
    """What goes wrong with a request whose text contains `match`."""

    kind: str
    seconds: float | None  # How long a stall lasts.
    left: int | None = 1  # How often it still happens; None for no limit.
    match: str = ""


class OrderedFaults:
    """The faults that a test has asked for; safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ordered: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._changed:
            self._ordered.append(fault)

    def take(self, happens: Callable[[Fault], bool]) -> Fault | None:
        """Returns the first that is left and can happen, which is then one less; None if there is none."""
        with self._changed:
            for fault in self._ordered:
                if fault.left != 0 and happens(fault):
                    if fault.left is not None:
                        fault.left -= 1
                    return fault
        return None

    def pending(self) -> int:
        with self._changed:
            return sum(fault.left or 0 for fault in self._ordered)

    def end(self) -> None:
        """Ends all faults, also the stalls that are under way."""
        with self._changed:
            self._ordered.clear()
            self._changed.notify_all()

    def wait(self, fault: Fault, stopping: threading.Event) -> None:
        """Waits as long as a stall lasts: its seconds, or until `end` or the end of the server."""
        with self._changed:
            self._changed.wait_for(
                lambda: stopping.is_set() or not any(one is fault for one in self._ordered), fault.seconds
            )

    def wake(self) -> None:
        """Makes stalls check whether the server is stopping."""
        with self._changed:
            self._changed.notify_all()


R = TypeVar("R")


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
        with self._changed:
            self._requests.clear()

    def wait_for(self, count: int, wanted: Callable[[R], bool], timeout: float, first: int) -> bool:
        """Waits for `count` wanted requests after the `first` ones; returns whether they came."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(map(wanted, self._requests[first:])) >= count, timeout)


S = TypeVar("S", bound=LoopbackServer)
F = TypeVar("F", bound="Fake[Any]")


class Fake(abc.ABC, Generic[S]):
    """Serves for as long as a ``with`` block lasts, on 127.0.0.1 only; what it holds outlives the block."""

    _server: S | None = None

    @abc.abstractmethod
    def _new_server(self) -> S:
        """Returns a server that has not been started."""

    def _stop(self, server: S) -> None:
        server.stop()

    def __enter__(self: F) -> F:
        if self._server is not None:
            raise RuntimeError(
                f"Expected a {type(self).__name__} that is not running. Received: one that is. Use one `with` at a "
                "time."
            )
        server = self._new_server()
        server.start()
        self._server = server
        return self

    def __exit__(self, *error: object) -> None:
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
