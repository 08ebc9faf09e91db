"""The metadata servers of Google Compute Engine, Amazon EC2 and Azure on the loopback interface, for tests.

`FakeMetadata` answers as the three of them do, announces what you tell it to, and fails in the ways in which such
servers fail.
"""

from __future__ import annotations

from collections.abc import Collection

from keras_preempt.testing.metadata.aws import FakeAws
from keras_preempt.testing.metadata.azure import FakeAzure
from keras_preempt.testing.metadata.gce import FakeGce
from keras_preempt.testing.metadata.wire import (
    METADATA_FAULTS,
    FakeCloud,
    MetadataRequest,
    MetadataServer,
    Question,
)
from keras_preempt.testing.server import Fake, OrderedFault, OrderedFaults, Reply, RequestLog


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
        self.gce = FakeGce()
        self.aws = FakeAws()
        self.azure = FakeAzure()
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
        self._faults.add(OrderedFault(kind, times, match, seconds))

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
        if not self._log.wait_for(count, match, timeout, first=self._earlier):
            raise TimeoutError(
                f"Expected {count} requests with {match!r} within {timeout} s. Received: "
                f"{sum(match in request.text for request in self.requests)}."
            )

    def _answer(self, question: Question) -> Reply:
        name = next((name for name, fake in self._fakes.items() if question.path.startswith(fake.root)), None)
        return self._fakes[name].answer(question) if name in self._clouds else Reply(404)
