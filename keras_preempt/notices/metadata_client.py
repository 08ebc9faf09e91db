"""A client of metadata servers: where they are, and one question over HTTP with a bounded wait for its answer.

It uses Python's own http.client because that does so little: no proxy, no redirect, no retry, no pool. Metadata servers
hand out credentials and decide when a run ends, so a question must go where it is addressed, or nowhere.
"""

from __future__ import annotations

import http.client
import io
import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from keras_preempt.notices.stopping import Stopping

LONGEST_BODY = 64 * 1024  # bytes; the documents that are asked for have one or two KiB
_CONNECT_SECONDS = 2.0  # The server is on the same machine, or on its host.


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int = 80

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


LINK_LOCAL = Address("169.254.169.254")
"""Where the metadata servers of all clouds are: on the machine's own link, so that no name is looked up."""


def parse_address(text: str, name: str) -> Address:
    """Reads ``host``, ``host:port`` or ``http://host:port/``.

    Args:
        text: What to read.
        name: The variable that it comes from, for the message.

    Raises:
        ValueError: It is something else. A path or a password would be dropped silently, and a metadata server
            speaks no https.
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
        """The body as text, without the space around it. Raises MetadataError if it is not text."""
        try:
            return self.body.decode().strip()
        except UnicodeDecodeError:
            raise self.unexpected("text", _excerpt(self.body)) from None

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises MetadataError if it is not one."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            raise self.unexpected("a JSON object", _excerpt(self.body)) from None
        if not isinstance(value, dict):
            raise self.unexpected("a JSON object", _excerpt(self.body))
        return value

    def unexpected(self, expected: str, received: str) -> MetadataError:
        """An error that names the question."""
        return MetadataError(f"Expected {expected} from {self.question}. Received: {received}.")


def _excerpt(body: bytes) -> str:
    return repr(body[:60]) + (" and more" if len(body) > 60 else "")


class MetadataClient:
    """Asks one server.

    Args:
        address: Where it is.
    """

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
        """Asks, and returns the answer whatever its status.

        Args:
            path: What to ask for, with its query.
            stopping: Ends the wait.
            headers: The request headers.
            timeout: How long everything together may take, in seconds.
            method: The HTTP method.

        Raises:
            MetadataError: There is no answer in time, or it is not HTTP, cut off, or too long.
            Stopped: `stopping` was set.
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
        answer = Answer(
            question, response.status, {name.lower(): value for name, value in response.getheaders()}, body
        )
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


class _Line:
    """A connection as http.client wants it, where every wait ends at the deadline or when told to stop.

    A socket's own timeout starts again with each byte, so a server that trickles could hold a thread for days.
    """

    def __init__(self, connection: socket.socket, stopping: Stopping, deadline: float) -> None:
        self._connection = connection
        self._stopping = stopping
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._stopping.wait_for(self._connection, select.POLLOUT, self._deadline)
            left = left[self._connection.send(left) :]

    def receive_into(self, buffer: bytearray) -> int:
        self._stopping.wait_for(self._connection, select.POLLIN, self._deadline)
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Does nothing: http.client closes before it has read the answer, relying on the reader to hold the socket."""


class _Reader(io.RawIOBase):
    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive_into(buffer)
