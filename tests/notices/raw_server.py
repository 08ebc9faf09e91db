"""A server on loopback that answers every connection with the same bytes, or badly: for clients of metadata servers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Literal

Behaviour = Literal["answer", "hang", "reset", "close", "trickle", "flood"]


def http(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


class RawServer:
    """Listens from the beginning of a `with` block to its end.

    Attributes:
        address: host:port.
        requests: The first line of each request so far.
    """

    def __init__(self, behaviour: Behaviour, reply: bytes = b"", *more: bytes) -> None:
        self._behaviour = behaviour
        self._replies = (reply, *more)
        self.requests: list[str] = []
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=5):
            pass
        self._thread.join(timeout=10)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                if self._over.is_set():
                    return
                self._treat(connection)

    def _treat(self, connection: socket.socket) -> None:
        if self._behaviour == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if self._behaviour == "close":
            return
        self.requests.append(connection.recv(65536).split(b"\r\n")[0].decode())
        reply = self._replies[min(len(self.requests), len(self._replies)) - 1]
        if self._behaviour == "answer":
            connection.sendall(reply)
        elif self._behaviour == "flood":
            connection.sendall(reply)
            while True:
                connection.sendall(self._replies[-1])
        elif self._behaviour == "hang":
            self._until_gone(connection)
        else:
            for byte in reply * 1000:
                connection.sendall(bytes([byte]))
                if self._over.wait(0.005):
                    return

    def _until_gone(self, connection: socket.socket) -> None:
        connection.settimeout(0.05)
        limit = time.monotonic() + 30
        while not self._over.is_set() and time.monotonic() < limit:
            with contextlib.suppress(TimeoutError):
                if connection.recv(1024) == b"":
                    return
