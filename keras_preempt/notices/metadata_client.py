"""A client of metadata servers: one question over HTTP, with a bounded wait for its answer that can be stopped.

It uses Python's own http.client because that does so little: no proxy, no redirect, no retry, no pool. Metadata servers
hand out credentials and decide when a run ends, so a question must go where it is addressed, or nowhere.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

LONGEST_BODY = 64 * 1024  # bytes; the documents that are asked for have one or two KiB
_CONNECT_SECONDS = 2.0  # The server is on the same machine, or on its host.


class Stopped(Exception):
    """The waiting thread was told to stop."""


class Stopping:
    """Tells one thread to stop, wherever it waits: between two requests, or inside one.

    An event would not do: it does not wake a thread that waits for a socket, and closing a socket does not wake its
    reader. So this goes through a pipe that every wait watches too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self.is_set = False
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        """Tells the thread to stop. Can be called again, and after `close`."""
        with self._lock:
            if not self.is_set and not self._closed:
                os.write(self._writer, b"s")
            self.is_set = True

    def wait(self, seconds: float) -> None:
        """Waits, in the thread; raises Stopped if it is to stop."""
        with contextlib.suppress(TimeoutError):
            self.wait_for(None, 0, time.monotonic() + seconds)

    def wait_for(self, connection: socket.socket | None, events: int, deadline: float) -> None:
        """Waits until a socket is ready for `events` (select.POLLIN or POLLOUT), or until monotonic `deadline`.

        Raises Stopped if the thread is to stop, TimeoutError at the deadline.
        """
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        if connection is not None:
            poller.register(connection, events)
        left = deadline - time.monotonic()
        ready = [descriptor for descriptor, _ in poller.poll(max(0.0, left) * 1000)]
        if self._reader in ready:
            raise Stopped
        if not ready or left <= 0:
            # Even when there is something to read: a server that sends a byte now and then must not go on for ever.
            raise TimeoutError("timed out")

    def close(self) -> None:
        """Closes the pipe; only the thread that waits may call this, once it waits no more."""
        with self._lock:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)


class Address(NamedTuple):
    host: str
    port: int = 80

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


LINK_LOCAL = Address("169.254.169.254")
"""Where the metadata servers of all clouds are: on the machine's own link, so that no name is looked up."""


def parse_address(text: str, name: str) -> Address:
    """Reads ``host``, ``host:port`` or ``http://host:port/``, the value of the variable `name`.

    Raises ValueError for anything else: a path or a password would be dropped silently, and a metadata server speaks
    no https.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    else:
        if parts.scheme != "http" or parts.path not in ("", "/") or "@" in parts.netloc:
            host = None
        if parts.query or parts.fragment or any(character <= " " for character in text):
            host = None
    if not host:
        raise ValueError(
            f"Expected {name} to be host, host:port or http://host:port. Received: {text!r}. "
            "Correct the variable, or unset it to ask the platform's own address."
        )
    return Address(host, 80 if port is None else port)


class MetadataError(Exception):
    """The metadata server does not answer, or not as its documentation says. The message is a sentence."""


@dataclass(frozen=True)
class Answer:
    """What the server said.

    Attributes:
        question: What was asked, for messages.
        status: The HTTP status; a redirect is not followed.
        headers: By name in lower case.
        body: At most `LONGEST_BODY` bytes.
    """

    question: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def check_status(self) -> None:
        """Raises MetadataError unless the status is 200."""
        if self.status != 200:
            raise self.unexpected("status 200", f"status {self.status}")

    def text(self) -> str:
        """The body without the space around it; raises MetadataError if it is not text."""
        try:
            return self.body.decode().strip()
        except UnicodeDecodeError:
            raise self.unexpected("text", self._excerpt()) from None

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises MetadataError if it is not one."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.unexpected("a JSON object", self._excerpt())
        return value

    def unexpected(self, expected: str, received: str) -> MetadataError:
        return MetadataError(f"Expected {expected} from {self.question}. Received: {received}.")

    def _excerpt(self) -> str:
        return repr(self.body[:60]) + (" and more" if len(self.body) > 60 else "")


class MetadataClient:
    def __init__(self, address: Address) -> None:
        self._address = address

    def ask(
        self,
        path: str,
        stopping: Stopping,
        *,
        headers: Mapping[str, str],
        timeout: float,
        method: str = "GET",
    ) -> Answer:
        """Asks, and returns the answer whatever its status; the timeout in seconds is for everything together.

        Raises MetadataError if there is no answer in time, or it is not HTTP, cut off, or too long; and Stopped.
        """
        question = f"{method} http://{self._address}{path}"
        deadline = time.monotonic() + timeout
        connection = http.client.HTTPConnection(*self._address)
        try:
            with _connect(self._address, stopping, deadline) as line:
                connection.sock = cast(socket.socket, _Line(line, stopping, deadline))
                connection.request(method, path, headers={**headers, "Connection": "close"})
                response = connection.getresponse()
                body = response.read(LONGEST_BODY + 1)
                if response.length:
                    raise http.client.IncompleteRead(body)
        except TimeoutError:
            raise MetadataError(f"Expected an answer from {question}. Received: none in time.") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # UnicodeError: a host that cannot be a name.
            said = f"{type(error).__name__}: {error}"
            raise MetadataError(f"Expected an answer from {question}. Received: {said[:200]}.") from error
        finally:
            connection.close()
        answer_headers = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(question, response.status, answer_headers, body)
        if len(body) > LONGEST_BODY:
            raise answer.unexpected(f"at most {LONGEST_BODY} bytes", "more")
        return answer


def _connect(address: Address, stopping: Stopping, deadline: float) -> socket.socket:
    deadline = min(deadline, time.monotonic() + _CONNECT_SECONDS)
    failure = OSError(f"no address of {address.host}")
    for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        line = socket.socket(family, kind, protocol)
        try:
            line.setblocking(False)
            line.connect_ex(where)
            stopping.wait_for(line, select.POLLOUT, deadline)
            error = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except BaseException:
            line.close()
            raise
        if not error:
            return line
        line.close()
        failure = OSError(error, "cannot connect")
    raise failure


class _Line(io.RawIOBase):
    """A connection as http.client wants it, where every wait ends at the deadline or when told to stop.

    A socket's own timeout starts again with each byte, so a server that trickles could hold a thread for days.
    """

    def __init__(self, connection: socket.socket, stopping: Stopping, deadline: float) -> None:
        super().__init__()
        self._connection = connection
        self._stopping = stopping
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._stopping.wait_for(self._connection, select.POLLOUT, self._deadline)
            left = left[self._connection.send(left) :]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._stopping.wait_for(self._connection, select.POLLIN, self._deadline)
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """No-op: http.client closes before it has read the answer, and relies on the reader to hold the socket."""
