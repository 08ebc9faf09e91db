"""The wire: connections, bodies at a pace, and the faults that happen to them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from keras_preempt.testing.gcs.api import Api, Call, Reply
from keras_preempt.testing.gcs.bodies import Body, body_of
from keras_preempt.testing.gcs.errors import ERROR_STATUSES, plain_error
from keras_preempt.testing.gcs.faults import Fault, FaultPlan
from keras_preempt.testing.gcs.pace import Bucket, Machines, Pace, Rates, buckets
from keras_preempt.testing.gcs.records import Request, RequestLog
from keras_preempt.testing.server import LoopbackServer


class GcsServer(LoopbackServer):
    """Serves an `Api` on 127.0.0.1; `stop` ends every connection and every thread.

    Args:
        port: where to listen; 0 for any free port.
        plan: decides what goes wrong.
        log: where requests are noted.
        connection_rates: what one connection moves at most.
        machine_rates: what all connections of one machine move at most.
    """

    request_queue_size = 256
    title = "FakeGcs"
    thread_name = "fake-gcs"

    def __init__(
        self,
        port: int,
        plan: FaultPlan,
        log: RequestLog,
        connection_rates: Rates = Rates(),  # noqa: B008 (it is immutable)
        machine_rates: Rates = Rates(),  # noqa: B008
    ) -> None:
        self.connection_rates = connection_rates
        self.machines = Machines(machine_rates)
        super().__init__(port, _Handler)
        self.plan = plan
        self.log = log
        self.api: Api  # Given by the owner, who needs the port first to know its endpoint.

    def process_request(self, request: Any, client_address: Any) -> None:
        """Bounds what the system buffers of a connection, for its rate to be felt."""
        if self.connection_rates.buffer is not None:
            for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                request.setsockopt(socket.SOL_SOCKET, side, self.connection_rates.buffer)
        super().process_request(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection: any number of requests, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "FakeGcs"
    disable_nagle_algorithm = True
    server: GcsServer

    def setup(self) -> None:
        super().setup()
        self._own_buckets = buckets(self.server.connection_rates)
        self._set_pace(*zip(self._own_buckets, strict=True))

    def _set_pace(self, up: Sequence[Bucket | None], down: Sequence[Bucket | None]) -> None:
        self._up, self._down = Pace(up, self.server.stopping), Pace(down, self.server.stopping)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: `FakeGcs.requests` tells what happened."""

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.command, self.path, headers)
        body = body_of(headers, self.rfile)
        if body is None:
            self.send_error(411, "Expected a Content-Length or chunks")
            self.close_connection = True
            return
        machine = self.server.machines.of(headers.get("user-agent", ""))
        self._set_pace(*zip(self._own_buckets, machine, strict=True))
        if (
            call.sort == "chunk"
        ):  # Its object is known before its body is read, so that a reset can cut it short.
            request, fault = self._note(call)
            self._receive(call, body, request, fault)
        else:
            self._receive(call, body, None, None)
            request, fault = self._note(call)
            request.bytes += len(call.body)
        if call.whole:
            self._carry_out(call, request, fault)
        else:
            if call.sort == "chunk":
                self.server.api.answer(call)  # What arrived is kept, as far as it makes whole pieces.
            self._break(reset=fault is not None)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve

    def _note(self, call: Call) -> tuple[Request, Fault | None]:
        target = self.server.api.target(call)
        asked = "&".join(f"{name}={value}" for name, value in call.pairs)
        request = Request(call.method, f"{call.path}?{asked}" if asked else call.path, target)
        self.server.log.add(request)
        fault = self.server.plan.choose(call.sort, f"{call.method} {call.path} {target}", request.text)
        if fault is not None:
            request.fault = fault.kind
            if fault.kind == "slow":
                trickle = [Bucket(self.server.plan.seeded.slow_bytes_per_second)]
                self._set_pace(trickle, trickle)
        return request, fault

    def _receive(self, call: Call, body: Body, request: Request | None, fault: Fault | None) -> None:
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

    def _carry_out(self, call: Call, request: Request, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        if fault is not None and kind == "stall":
            self.server.stopping.wait(fault.seconds)
        if self.server.stopping.is_set() or kind == "reset":
            self._break(reset=True)
            return
        if kind.isdigit() and int(kind) in ERROR_STATUSES:
            wait = {"Retry-After": str(self.server.plan.seeded.retry_after)} if kind == "429" else None
            self._send(Reply.of_error(plain_error(int(kind), wait), media=call.sort == "media"), request, "")
            return
        if kind == "corrupted-upload":
            call.body = _with_one_bit_flipped(call.body, _content_middle(call))
        elif kind == "session-lost":
            self.server.api.sessions.lose(call.query.get("upload_id", ""))
        reply = self.server.api.answer(call)
        if kind == "lost-response":
            self._break(reset=True)
        elif kind == "empty-response" and reply.status < 300:
            self._send(Reply(reply.status, b"", reply.headers), request, "")
        else:
            self._send(reply, request, kind)

    def _send(self, reply: Reply, request: Request, kind: str) -> None:
        body = reply.body
        if kind == "corrupted" and reply.media and body:
            body = _with_one_bit_flipped(body, len(body) // 2)
        request.status = reply.status
        request.bytes += len(body)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return  # Never followed by a body, whatever its length is said to be.
        cut = len(body) // 2 if kind == "truncated" and reply.media else len(body)
        view = memoryview(body)[:cut]
        while view:
            size = min(self._down.slice, len(view))
            self.wfile.write(view[:size])
            view = view[size:]
            self._down.spend(size)
            if self.server.stopping.is_set():
                break
        if view or cut < len(body):
            self._break(reset=False)

    def _break(self, *, reset: bool) -> None:
        """Ends the connection after this request."""
        self.close_connection = True
        if reset:
            self.server.reset(self.connection)


def _content_middle(call: Call) -> int:
    """A place within the content that an upload carries, whatever is wrapped around it."""
    if call.query.get("uploadType") != "multipart":
        return len(call.body) // 2
    start = call.body.find(b"\r\n\r\n", call.body.find(b"\r\n\r\n") + 4) + 4
    return (start + call.body.rfind(b"\r\n--")) // 2


def _with_one_bit_flipped(body: bytes, place: int) -> bytes:
    if not body:
        return body
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
