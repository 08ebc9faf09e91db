"""The metadata servers of Google Compute Engine, Amazon EC2 and Azure on the loopback interface, for tests.

`FakeMetadata` answers as the three of them do, announces what you tell it to while somebody listens, and fails
in the ways in which such servers fail.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType

from keras_preempt.process import environment
from keras_preempt.testing.metadata.aws import FakeAws
from keras_preempt.testing.metadata.azure import FakeAzure
from keras_preempt.testing.metadata.faults import MetadataFaults
from keras_preempt.testing.metadata.gce import FakeGce
from keras_preempt.testing.metadata.wire import MetadataRequest, MetadataServer, Question, Reply

CLOUDS = ("gce", "aws", "azure")
"""The clouds that `FakeMetadata` can be."""


class FakeMetadata:
    """Metadata servers of one's own, for as long as a ``with`` block lasts.

    Example:
        with FakeMetadata() as fake:
            source = GcePreemption(notices.put, address=Address("127.0.0.1", fake.port))
            source.start()
            fake.gce.preempt()
            notices.get(timeout=1)
            source.stop()

    It listens on 127.0.0.1 only. What it serves outlives the ``with`` block, so that a server can come back.

    Args:
        clouds: Which of `CLOUDS` it is; questions for the others are answered with 404.
        port: Where to listen; 0 for any free port.

    Attributes:
        gce: What Google Compute Engine's server says.
        aws: What Amazon EC2's server says.
        azure: What Azure's server says.

    Raises:
        ValueError: `clouds` names an unknown one.
    """

    def __init__(self, clouds: Collection[str] = CLOUDS, *, port: int = 0) -> None:
        unknown = set(clouds) - set(CLOUDS)
        if unknown:
            raise ValueError(
                f"Expected clouds out of {', '.join(CLOUDS)}. Received: {sorted(unknown)}. Correct the name."
            )
        self.gce = FakeGce()
        self.aws = FakeAws()
        self.azure = FakeAzure()
        self._clouds = frozenset(clouds)
        self._port = port
        self._faults = MetadataFaults()
        self._server: MetadataServer | None = None
        self._earlier: list[MetadataRequest] = []

    def __enter__(self) -> FakeMetadata:
        """Starts to serve."""
        if self._server is not None:
            raise RuntimeError(
                "Expected a FakeMetadata that is not running. Received: one that is. Use one `with` at a time."
            )
        self.gce.start()
        self._server = MetadataServer(self._port, self._answer, self._faults)
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends every connection and every thread."""
        server, self._server = self._running(), None
        server.stopping.set()
        self.gce.end()
        self._faults.wake()
        server.stop()
        self._earlier += server.requests()

    def _running(self) -> MetadataServer:
        if self._server is None:
            raise RuntimeError(
                "Expected a FakeMetadata that is running. Received: one that is not. Use it inside "
                "`with FakeMetadata() as fake:`."
            )
        return self._server

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._running().port

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point whoever asks a metadata server to this one, for all three clouds."""
        host = f"127.0.0.1:{self.port}"
        return {
            environment.GCE_METADATA_HOST: host,
            environment.GCE_METADATA_IP: host,
            environment.AWS_METADATA_ENDPOINT: f"http://{host}/",
            environment.AZURE_METADATA_HOST: host,
        }

    def fail(
        self, kind: str, times: int | None = None, *, match: str = "", seconds: float | None = None
    ) -> None:
        """Lets questions fail from now on.

        Args:
            kind: One of `METADATA_FAULTS`, or an HTTP status from 400 to 599 as text.
            times: How many questions; until `recover` by default.
            match: Only questions whose `MetadataRequest.text` contains it.
            seconds: How long a ``"stall"`` lasts; until `recover` by default.

        Raises:
            ValueError: The kind is unknown, or `times` is below 1.
        """
        self._faults.order(kind, times, match, seconds)

    def recover(self) -> None:
        """Ends all faults."""
        self._faults.recover()

    def drop_connections(self) -> None:
        """Breaks every connection off, also those of questions that are kept waiting."""
        self._running().drop_connections()

    @property
    def requests(self) -> list[MetadataRequest]:
        """Every question so far, in the order of arrival, as copies."""
        return self._earlier + (self._server.requests() if self._server else [])

    def wait_for_requests(self, count: int, match: str = "", timeout: float = 10.0) -> None:
        """Waits until so many questions whose `MetadataRequest.text` contains `match` have come since the start.

        Raises:
            TimeoutError: They have not come after `timeout` seconds.
        """
        if not self._running().wait_for_requests(count, match, timeout):
            raise TimeoutError(
                f"Expected {count} requests with {match!r} within {timeout} s. Received: "
                f"{sum(match in request.text for request in self.requests)}."
            )

    def _answer(self, question: Question) -> Reply:
        if question.path.startswith("/latest/"):
            return self.aws.answer(question) if "aws" in self._clouds else Reply(404)
        if question.path.startswith("/metadata/"):
            return self.azure.answer(question) if "azure" in self._clouds else Reply(404)
        if question.path == "/":
            return self._answer_root()
        return self.gce.answer(question) if "gce" in self._clouds else Reply(404)

    def _answer_root(self) -> Reply:
        if "gce" in self._clouds:
            return Reply(200, b"computeMetadata/\n", {"Metadata-Flavor": "Google"})
        return Reply(404)
