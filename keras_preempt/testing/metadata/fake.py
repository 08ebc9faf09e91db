"""The metadata servers of Google Compute Engine, Amazon EC2 and Azure on the loopback interface, for tests.

`FakeMetadata` answers as the three of them do, announces what you tell it to, and fails in the ways in which such
servers fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from keras_preempt.testing.metadata.clouds import (
    GOOGLE_FLAVOR,
    AwsMetadata,
    AzureMetadata,
    FakeCloud,
    GceMetadata,
    Question,
)
from keras_preempt.testing.server import (
    Fake,
    Fault,
    Handler,
    LoopbackServer,
    OrderedFaults,
    Reply,
    RequestLog,
)

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
        """``METHOD path?query``: in which the `match` of a fault is searched."""
        return f"{self.method} {self.path}"


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


class FakeMetadata(Fake[MetadataServer]):
    """Fake metadata servers for as long as a ``with`` block lasts.

    Example:
        with FakeMetadata() as fake:
            source = GcePreemption(notices.put, address=Address("127.0.0.1", fake.port))
            source.start()
            fake.gce.preempt()
            notices.get(timeout=1)
            source.stop()

    It listens on 127.0.0.1 only. What it serves outlives the ``with`` block, so that a server can go and come back.

    Args:
        clouds: Which clouds it is, out of "gce", "aws" and "azure"; all of them by default. Questions for the others
            are answered with 404.
        port: Where to listen; 0 for any free port.

    Attributes:
        gce: What Google Compute Engine's server says.
        aws: What Amazon EC2's server says.
        azure: What Azure's server says.

    Raises:
        ValueError: `clouds` names an unknown one.
    """

    def __init__(self, clouds: Collection[str] | None = None, *, port: int = 0) -> None:
        self.gce = GceMetadata()
        self.aws = AwsMetadata()
        self.azure = AzureMetadata()
        fakes: dict[str, FakeCloud] = {"gce": self.gce, "aws": self.aws, "azure": self.azure}
        self._clouds = frozenset(fakes if clouds is None else clouds)
        unknown = self._clouds - set(fakes)
        if unknown:
            raise ValueError(
                f"Expected clouds out of {', '.join(fakes)}. Received: {sorted(unknown)}. Correct the name."
            )
        # The longest root first: every path begins with that of Google's.
        self._fakes = dict(sorted(fakes.items(), key=lambda item: -len(item[1].root)))
        self._port = port
        self._faults = OrderedFaults()
        self._log: RequestLog[MetadataRequest] = RequestLog()
        self._earlier = 0

    def _new_server(self) -> MetadataServer:
        self._earlier = len(self.requests)
        self.gce.start()
        return MetadataServer(self._port, self._answer, self._faults, self._log)

    def _stop(self, server: MetadataServer) -> None:
        server.stopping.set()
        self.gce.end()
        self._faults.wake()
        server.stop()

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._running().port

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point clients of any cloud's metadata server to this one."""
        host = f"127.0.0.1:{self.port}"
        forms = {name: form for fake in self._fakes.values() for name, form in fake.variables.items()}
        return {name: form.format(host) for name, form in forms.items()}

    def fail(
        self, kind: str, times: int | None = None, *, match: str = "", seconds: float | None = None
    ) -> None:
        """Makes requests fail from now on.

        Args:
            kind: One of `METADATA_FAULTS`, or an HTTP status from 400 to 599 as text.
            times: How many requests; until `recover` by default.
            match: Only requests whose `MetadataRequest.text` contains this.
            seconds: How long a ``"stall"`` lasts; until `recover` by default.

        Raises:
            ValueError: The kind is unknown, or `times` is below 1.
        """
        is_status = kind.isascii() and kind.isdigit() and 400 <= int(kind) <= 599
        if kind not in METADATA_FAULTS and not is_status:
            raise ValueError(
                f"Expected a kind of fault out of {', '.join(METADATA_FAULTS)}, or an HTTP status from 400 to 599. "
                f"Received: {kind!r}. Correct the kind."
            )
        if times is not None and times < 1:
            raise ValueError(
                f"Expected times of at least 1, or None for until recover(). Received: {times!r}. "
                "Correct the number."
            )
        self._faults.add(Fault(kind, seconds, times, match))

    def recover(self) -> None:
        """Ends all faults."""
        self._faults.end()

    def drop_connections(self) -> None:
        """Resets every connection, also those of requests that are kept waiting."""
        self._running().end_connections()

    @property
    def requests(self) -> list[MetadataRequest]:
        """Every request so far, in the order of arrival, as copies."""
        return self._log.snapshot()

    def wait_for_requests(self, count: int, match: str = "", timeout: float = 10.0) -> None:
        """Waits until `count` requests whose `MetadataRequest.text` contains `match` have come since the start.

        Raises:
            TimeoutError: They have not come after `timeout` seconds.
        """
        if not self._log.wait_for(count, lambda request: match in request.text, timeout, self._earlier):
            raise TimeoutError(
                f"Expected {count} requests with {match!r} within {timeout} s. Received: "
                f"{sum(match in request.text for request in self.requests)}."
            )

    def _answer(self, question: Question) -> Reply:
        name = next((name for name, fake in self._fakes.items() if question.path.startswith(fake.root)), None)
        return self._fakes[name].answer(question) if name in self._clouds else Reply(404)
