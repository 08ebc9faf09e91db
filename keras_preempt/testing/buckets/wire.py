"""The HTTP side of the fakes: connections, bodies at a limited rate, and the faults that happen to them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

from keras_preempt.testing.buckets.calls import AnyApi, BucketCall
from keras_preempt.testing.buckets.faults import FaultPlan
from keras_preempt.testing.buckets.pace import Rate, Rates, Throttle, TokenBucket
from keras_preempt.testing.server import Fault, Handler, LoopbackServer, Reply, RequestLog

_LONGEST_LINE = 1024  # bytes
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r?\n")
_PAGE = b"<html><body>Please sign in to the network.</body></html>"


@dataclass
class Request:
    """One request that the server received.

    Attributes:
        method: The HTTP method.
        path: The path with its query, percent-decoded.
        target: ``bucket/object``, as far as the request names them.
        status: The HTTP status that was sent; None while the request is in flight, and if nothing was sent.
        bytes: How many bytes of body were received and sent, without headers.
        fault: The kind of the fault that happened to it, or None.
    """

    method: str
    path: str
    target: str
    status: int | None = None
    bytes: int = 0
    fault: str | None = None

    @property
    def text(self) -> str:
        """``METHOD path?query bucket/object``: in which the `match` of a fault is searched."""
        return f"{self.method} {self.path} {self.target}"


@dataclass(frozen=True)
class RateLimits:
    """What one connection, all connections of one machine, and all connections together move at most."""

    connection: Rates
    machine: Rates
    bucket: Rates

    @classmethod
    def of(cls, connection: Rate, machine: Rate, bucket: Rate) -> RateLimits:
        """Reads the arguments of a fake that limit rates."""
        return cls(
            Rates.of("bytes_per_second", connection),
            Rates.of("machine_bytes_per_second", machine),
            Rates.of("bucket_bytes_per_second", bucket),
        )


class BucketServer(LoopbackServer):
    """Serves the API of a service on 127.0.0.1, with the faults of a plan."""

    request_queue_size = 256

    def __init__(
        self, title: str, port: int, plan: FaultPlan, log: RequestLog[Request], limits: RateLimits
    ) -> None:
        self.title = title
        self.thread_name = f"fake-{title.removeprefix('Fake').lower()}"
        self.limits = limits
        self._machines: dict[str, tuple[TokenBucket, TokenBucket]] = {}
        self.bucket = limits.bucket.buckets()
        super().__init__(port, _Handler)
        self.plan = plan
        self.log = log
        self.api: AnyApi  # Given by the owner, who needs the port first to know its endpoint.

    def process_request(self, request: Any, client_address: Any) -> None:
        """Bounds what the system buffers for a connection, so that the client feels its rate."""
        if (size := self.limits.connection.buffer) is not None:
            for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                request.setsockopt(socket.SOL_SOCKET, side, size)
        super().process_request(request, client_address)

    def machine(self, user_agent: str) -> tuple[TokenBucket, TokenBucket]:
        """The limits of a machine in both directions: clients with the same User-Agent are on one."""
        with self._lock:
            if user_agent not in self._machines:
                self._machines[user_agent] = self.limits.machine.buckets()
            return self._machines[user_agent]


class _Handler(Handler):
    server: BucketServer

    def setup(self) -> None:
        super().setup()
        self._connection = self.server.limits.connection.buckets()

    def _set_throttles(self, up: Sequence[TokenBucket], down: Sequence[TokenBucket]) -> None:
        self._up, self._down = Throttle(up, self.server.stopping), Throttle(down, self.server.stopping)

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        call: BucketCall = self.server.api.call(self.command, self.path, headers)
        body = Body.announced_by(headers, self.rfile)
        if body is None:
            self.send_error(411, "Expected a Content-Length or chunks")
            self.close_connection = True
            return
        machine = self.server.machine(headers.get("user-agent", ""))
        self._set_throttles(*zip(self._connection, machine, self.server.bucket, strict=True))
        if call.named_by_head:
            # Its object is known before its body is read, so that a reset can cut it short.
            request, fault = self._log(call)
            self._receive(call, body, request, fault)
        else:
            self._receive(call, body, None, None)
            request, fault = self._log(call)
            request.bytes += len(call.body)
        if call.whole:
            self._answer(call, request, fault)
        else:
            if call.keeps_pieces:
                self.server.api.answer(call)
            self.break_off(reset=fault is not None)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve

    def _log(self, call: BucketCall) -> tuple[Request, Fault | None]:
        target = self.server.api.target(call)
        query = "&".join(f"{name}={value}" for name, value in call.pairs)
        request = Request(call.method, f"{call.path}?{query}" if query else call.path, target)
        self.server.log.add(request)
        fault = self.server.plan.choose(
            self.server.api.faults_of(call),
            f"{call.method} {call.path} {target}{call.part}",
            request.text,
            of_bucket=call.category == "bucket",
        )
        if fault is not None:
            request.fault = fault.kind
            if fault.kind == "slow":
                trickle = [TokenBucket(self.server.plan.seeded.slow_bytes_per_second)]
                self._set_throttles(trickle, trickle)
        return request, fault

    def _receive(self, call: BucketCall, body: Body, request: Request | None, fault: Fault | None) -> None:
        """Reads the body, or half of it (of one in chunks: one piece) if a reset is due."""
        wanted = body.size
        if fault is not None and fault.kind == "reset":
            wanted = self._up.slice if body.size is None else body.size // 2
        pieces, arrived = [], 0
        while wanted is None or arrived < wanted:
            try:
                piece = body.read(self._up.slice if wanted is None else min(self._up.slice, wanted - arrived))
            except ConnectionError:
                break
            if not piece:
                break
            pieces.append(piece)
            arrived += len(piece)
            if request is not None:
                request.bytes = arrived
            self._up.spend(len(piece))
        call.body, call.whole = b"".join(pieces), arrived == body.size

    def _answer(self, call: BucketCall, request: Request, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        if fault is not None and kind == "stall":
            self.server.stopping.wait(fault.seconds)
        if self.server.stopping.is_set() or kind == "reset":
            self.break_off(reset=True)
            return
        if kind in ("204", "page"):
            page = Reply(200, _PAGE, {"Content-Type": "text/html"})
            self._send(page if kind == "page" else Reply(204), request)
            return
        if kind.isdigit() or kind == "expired-token":
            reply = self.server.api.fault(call, kind, self.server.plan.seeded.retry_after)
            self._send(reply, request)
            return
        if kind == "corrupted-upload":
            call.body = _with_one_bit_flipped(call.body, call.content_middle())
        elif kind == "session-lost":
            self.server.api.lose_upload(call)
        reply = self.server.api.answer(call)
        if kind == "lost-response":
            self.break_off(reset=True)
        elif kind == "empty-response" and reply.status < 300:
            kept = {name: value for name, value in reply.headers.items() if name.lower() != "etag"}
            self._send(Reply(reply.status, b"", kept), request)
        else:
            is_content = call.category == "media" and reply.status in (200, 206)
            self._send(reply, request, kind if is_content else "")

    def _send(self, reply: Reply, request: Request, kind: str = "") -> None:
        """`kind` is that of a fault that happens to the content."""
        if kind == "corrupted":
            reply.body = _with_one_bit_flipped(reply.body, len(reply.body) // 2)
        body = reply.body
        request.status = reply.status
        if self.command != "HEAD":
            request.bytes += len(body)
        if not self.send_head(reply):
            return
        cut = len(body) // 2 if kind == "truncated" else len(body)
        view = memoryview(body)[:cut]
        while view:
            size = min(self._down.slice, len(view))
            self.wfile.write(view[:size])
            view = view[size:]
            self._down.spend(size)
            if self.server.stopping.is_set():
                break
        if view or cut < len(body):
            self.break_off(reset=False)


def _with_one_bit_flipped(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :] if body else body


class Body:
    """The body of a request: of a length that is announced, or in chunks that give theirs (RFC 9112, section 7.1)."""

    def __init__(self, stream: BufferedIOBase, size: int | None) -> None:
        self.size = size  # In bytes; None until the end of one in chunks, as libcurl sends them.
        self._stream = stream
        self._chunks = size is None
        self._left = size or 0  # Of the body, or of a chunk.
        self._taken = 0

    @classmethod
    def announced_by(cls, headers: Mapping[str, str], stream: BufferedIOBase) -> Body | None:
        """The body that headers, by names in lower case, announce; None if they make no sense."""
        if "transfer-encoding" in headers:
            # A Content-Length beside it does not count (RFC 9112, section 6.3).
            return cls(stream, None) if headers["transfer-encoding"].lower() == "chunked" else None
        length = headers.get("content-length", "0")
        return cls(stream, int(length)) if length.isascii() and length.isdigit() else None

    def read(self, most: int) -> bytes:
        """Returns up to `most` bytes; none at the end, or if the connection ended before it."""
        if self._chunks and not self._left:
            line = _CHUNK_SIZE.fullmatch(self._stream.readline(_LONGEST_LINE))
            self._left = int(line[1], 16) if line else 0
            self._chunks = self._left > 0
            if (
                line and not self._left
            ):  # Else the connection ended, or this is not a chunk: the body is not whole.
                while self._stream.readline(_LONGEST_LINE).strip():
                    pass  # Trailing headers.
                self.size = self._taken
        piece = self._stream.read(min(most, self._left)) if self._left else b""
        self._left -= len(piece)
        self._taken += len(piece)
        if self._chunks and piece and not self._left:
            self._stream.readline(_LONGEST_LINE)  # What ends each chunk.
        return piece
