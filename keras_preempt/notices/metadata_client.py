"""A client of metadata servers: one question over HTTP, with a bounded wait for its answer that can be stopped.

It uses Python's own http.client because that does so little: no proxy, no redirect, no retry, no pool. Metadata servers
hand out credentials and decide when a run ends, so a question must go where it is addressed, or nowhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

LONGEST_BODY = 64 * 1024  # bytes; the documents that are asked for have one or two KiB
_CONNECT_SECONDS = 2.0  # The server is on the same machine, or on its host.


class Stopped(Exception):
    """The thread was told to stop."""


class Stopping:
    """Tells a thread to stop, whether it waits between two requests or inside one."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def set(self) -> None:
        with self._lock:
            self._event.set()
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    # Wakes a thread that reads from it or connects it, which closing it would not.
                    self._connection.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float = 0.0) -> None:
        """Waits in the thread; raises Stopped if it is to stop."""
        if self._event.wait(seconds):
            raise Stopped

    def waits_for(self, connection: socket.socket | None) -> None:
        """Says which connection the thread waits for from now on; raises Stopped if it is to stop."""
        with self._lock:
            self._connection = connection
        self.wait()


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
    question: str  # What was asked, for messages.
    status: int  # The HTTP status; a redirect is not followed.
    headers: Mapping[str, str]  # By name in lower case.
    body: bytes  # At most `LONGEST_BODY`.

    def check_status(self) -> None:
        """Raises MetadataError unless the status is 200."""
        if self.status != 200:
            raise self.unexpected("status 200", f"status {self.status}")

    def text(self) -> str:
        """The body, stripped; raises MetadataError if it is not text."""
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
    def __init__(self, address: Address, stopping: Stopping) -> None:
        self._address = address
        self._stopping = stopping

    def ask(self, path: str, *, headers: Mapping[str, str], timeout: float, method: str = "GET") -> Answer:
        """Returns the answer whatever its status; the timeout in seconds is for everything together.

        Raises MetadataError if there is no answer in time, or it is not HTTP, cut off, or too long; and Stopped.
        """
        question = f"{method} http://{self._address}{path}"
        deadline = time.monotonic() + timeout
        connection = http.client.HTTPConnection(*self._address)
        try:
            connection.sock = self._connect(deadline)
            connection.request(method, path, headers={**headers, "Connection": "close"})
            with connection.getresponse() as response:
                body = response.read(LONGEST_BODY + 1)
            self._stopping.wait()  # A connection that was shut down may look like the end of the body.
            if response.length:
                raise http.client.IncompleteRead(body)
        except TimeoutError:
            raise MetadataError(f"Expected an answer from {question}. Received: none in time.") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # UnicodeError: a host that cannot be a name.
            self._stopping.wait()
            said = f"{type(error).__name__}: {error}"
            raise MetadataError(f"Expected an answer from {question}. Received: {said[:200]}.") from error
        finally:
            connection.close()
            with contextlib.suppress(Stopped):
                self._stopping.waits_for(None)
        answer_headers = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(question, response.status, answer_headers, body)
        if len(body) > LONGEST_BODY:
            raise answer.unexpected(f"at most {LONGEST_BODY} bytes", "more")
        return answer

    def _connect(self, deadline: float) -> socket.socket:
        failure = OSError(f"no address of {self._address.host}")
        for family, kind, protocol, _, where in socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM):
            line = _Line(family, kind, protocol)
            try:
                line.setblocking(False)
                line.connect_ex(where)
                self._stopping.waits_for(line)
                poller = select.poll()
                poller.register(line, select.POLLOUT)
                left = min(deadline - time.monotonic(), _CONNECT_SECONDS)
                if not poller.poll(max(0.0, left) * 1000):
                    raise TimeoutError
                if error_number := line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error_number, "cannot connect")
                self._stopping.wait()
                line.deadline = deadline
                line.settimeout(max(0.001, deadline - time.monotonic()))  # For sending.
                return line
            except OSError as error:
                line.close()
                if isinstance(error, TimeoutError):
                    raise
                failure = error
            except BaseException:
                line.close()
                raise
        raise failure


class _Line(socket.socket):
    """A connection of which every read ends at the deadline; a socket's own timeout starts again with each byte."""

    deadline = 0.0

    def recv_into(self, *arguments: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(*arguments)
