"""A server on 127.0.0.1 whose every connection and thread ends when it is told to stop."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing discards and sends RST
_JOIN_SECONDS = 10.0


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
        self._accepting = threading.Thread(target=self._accept, name=self.thread_name, daemon=True)

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
