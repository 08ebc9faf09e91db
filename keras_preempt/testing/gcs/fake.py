"""Google Cloud Storage on the loopback interface, for tests and drills.

`FakeGcs` is an HTTP server that the real google-cloud-storage client talks to. It keeps generations, honours
preconditions, verifies checksums, and makes connections fail as the real service and its network do, on demand or by
seed. For the worker processes of a drill it can run as a process of its own::

    python -m keras_preempt.testing.gcs.fake --bucket b --fault-rate 0.1 --seed 1
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Collection, Sequence
from typing import Any

from keras_preempt.testing.gcs.api import Api
from keras_preempt.testing.gcs.errors import POLICIES, GcsError
from keras_preempt.testing.gcs.faults import DEFAULT_KINDS, FaultPlan, Faults, check_kind
from keras_preempt.testing.gcs.objects import OPERATIONS, Buckets, ObjectSummary, Preconditions, StoredObject
from keras_preempt.testing.gcs.pace import Rates
from keras_preempt.testing.gcs.wire import GcsServer, RateLimits, Request
from keras_preempt.testing.server import Fake, Fault, RequestLog

QUIET_CLIENT = {"DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true"}
"""Keeps google-cloud-storage from asking for each bucket's metadata in a thread of its own, which would go on for two
minutes after the server is gone and disturb the next tests."""


class FakeGcs(Fake[GcsServer]):
    """A fake Google Cloud Storage for as long as a ``with`` block lasts.

    Example:
        with FakeGcs(buckets=("bucket",)) as gcs:
            blob = gcs.client().bucket("bucket").blob("greeting")
            blob.upload_from_string(b"hello", if_generation_match=0, checksum="crc32c")
            assert gcs.content("bucket", "greeting") == b"hello"

    It listens on 127.0.0.1 only, and keeps everything in memory: what is stored can still be looked at after the block.
    `QUIET_CLIENT` is added to the environment of this process and stays there.

    Args:
        buckets: Names of the buckets that exist from the start.
        faults: Faults that happen by themselves; None for none.
        bytes_per_second: The most that one connection moves in either direction, or a pair: the most that it
            uploads and the most that it downloads. None for no limit. Several connections are several times as fast,
            as in a real network.
        deny: Operations for which the caller lacks permission: any of ``"bucket"`` (a bucket's metadata), ``"create"``,
            ``"delete"``, ``"get"``, ``"list"`` and ``"update"``.
        machine_bytes_per_second: The same for all connections of one machine together, like that of a network card.
            Clients that send the same User-Agent are taken to be on one machine.
        bucket_bytes_per_second: The same for all connections together, like the quota of a project.
        location: The location that the buckets report.
        port: Where to listen; 0 for any free port.

    Raises:
        ValueError: `deny` names an unknown operation, or a rate is not above 0.
    """

    def __init__(
        self,
        buckets: Collection[str] = ("bucket",),
        faults: Faults | None = None,
        bytes_per_second: float | Sequence[float] | None = None,
        *,
        machine_bytes_per_second: float | Sequence[float] | None = None,
        bucket_bytes_per_second: float | Sequence[float] | None = None,
        deny: Collection[str] = (),
        location: str = "US",
        port: int = 0,
    ) -> None:
        self._limits = RateLimits(
            Rates.of("bytes_per_second", bytes_per_second),
            Rates.of("machine_bytes_per_second", machine_bytes_per_second),
            Rates.of("bucket_bytes_per_second", bucket_bytes_per_second),
        )
        self._denied: set[str] = set()
        self.deny = deny
        self._plan = FaultPlan(faults)
        self._log: RequestLog[Request] = RequestLog()
        self._buckets = Buckets(buckets, location, self._denied)
        self._port = port
        self._clients: list[Any] = []

    def _new_server(self) -> GcsServer:
        for name, value in QUIET_CLIENT.items():
            os.environ.setdefault(name, value)
        server = GcsServer(self._port, self._plan, self._log, self._limits)
        server.api = Api(self._buckets, f"http://127.0.0.1:{server.port}")
        return server

    def _stop(self, server: GcsServer) -> None:
        server.stop()
        for client in self._clients:
            client.close()
        self._clients.clear()

    @property
    def endpoint(self) -> str:
        """The address, such as ``http://127.0.0.1:12345``: what STORAGE_EMULATOR_HOST is to be set to."""
        return self._running().api.endpoint

    def environment(self) -> dict[str, str]:
        """Environment variables with which a child process finds this server instead of the real one."""
        return {
            "STORAGE_EMULATOR_HOST": self.endpoint,
            "GOOGLE_CLOUD_PROJECT": "fake-project",
            **QUIET_CLIENT,
        }

    def client(self) -> Any:
        """A `google.cloud.storage.Client` of this server, which is closed at the end of the ``with`` block."""
        # Imported here: a server process does not need the client.
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(
            project="fake-project",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": self.endpoint},
        )
        self._clients.append(client)
        return client

    @property
    def deny(self) -> set[str]:
        """The denied operations. The set may be changed or replaced at any time."""
        return self._denied

    @deny.setter
    def deny(self, operations: Collection[str]) -> None:
        denied = {operations} if isinstance(operations, str) else set(operations)
        unknown = denied - set(OPERATIONS)
        if unknown:
            raise ValueError(
                f"Expected operations out of {', '.join(OPERATIONS)} to deny. Received: {sorted(unknown)}. "
                "Correct the operation."
            )
        # In place, since the buckets hold this set, and in one step, so that no request sees half of the change.
        self._denied.symmetric_difference_update(self._denied ^ denied)

    @property
    def policies(self) -> Collection[str]:
        """Settings that refuse operations to everybody: ``"retention"``, ``"requester pays"``, ``"organization"``."""
        return self._buckets.policies

    @policies.setter
    def policies(self, policies: Collection[str]) -> None:
        if unknown := set(policies) - set(POLICIES):
            raise ValueError(
                f"Expected policies out of {', '.join(POLICIES)}. Received: {sorted(unknown)}. Correct the policy."
            )
        self._buckets.policies = tuple(policies)

    @property
    def faults(self) -> Faults:
        """The faults that happen by themselves. They may be replaced at any time."""
        return self._plan.seeded

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        self._plan.seeded = faults or Faults()

    def fail_next(
        self, kind: str, times: int = 1, match: str = "", *, stall_seconds: float | None = None
    ) -> None:
        """Makes the next requests fail to which this kind of fault can happen.

        Args:
            kind: One of `FAULT_KINDS`.
            times: How many requests fail.
            match: Only requests whose `Request.text`, ``METHOD path?query bucket/object``, contains this. Without it,
                requests for a bucket's own metadata do not fail, since the client makes some by itself.
            stall_seconds: How long a ``"stall"`` lasts; that of `faults` by default.

        Raises:
            ValueError: The kind is unknown, or `times` is below 1.
        """
        check_kind(kind)
        if times < 1:
            raise ValueError(f"Expected times of at least 1. Received: {times!r}. Correct the number.")
        self._plan.ordered.add(Fault(kind, stall_seconds, times, match))

    @property
    def pending_faults(self) -> int:
        """How many faults of `fail_next` have not happened yet."""
        return self._plan.ordered.pending()

    @property
    def unauthenticated(self) -> bool:
        """Whether every request is refused with 401. May be set."""
        return self._running().api.unauthenticated

    @unauthenticated.setter
    def unauthenticated(self, refuse: bool) -> None:
        self._running().api.unauthenticated = refuse

    def lose_sessions(self) -> int:
        """Forgets every resumable upload that is under way (410 from now on); returns how many there were."""
        return self._running().api.sessions.lose()

    def objects(self, bucket: str) -> dict[str, ObjectSummary]:
        """What a bucket holds, sorted by name. Raises KeyError if there is no such bucket."""
        return {
            name: ObjectSummary(stored.generation, len(stored.content), stored.crc32c, stored.metadata)
            for name, stored in self._stored(bucket).items()
        }

    def _stored(self, bucket: str) -> dict[str, StoredObject]:
        try:
            return self._buckets.objects(bucket)
        except GcsError as error:
            raise KeyError(
                f"Expected a bucket that exists. Received: {bucket!r}. Name it in FakeGcs(buckets=...)."
            ) from error

    def content(self, bucket: str, name: str) -> bytes:
        """The content of an object. Raises KeyError if there is no such object."""
        return self._stored(bucket)[name].content

    def put(self, bucket: str, name: str, content: bytes) -> int:
        """Stores an object without a request, replacing any that is there; returns its generation."""
        return self._buckets.insert(bucket, name, content, {}, Preconditions()).generation

    def remove(self, bucket: str, name: str) -> None:
        """Removes an object without a request."""
        self._buckets.delete(bucket, name, {})

    def remove_bucket(self, bucket: str) -> None:
        """Removes a bucket and everything in it without a request."""
        self._buckets.delete_bucket(bucket, with_objects=True)

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival, as copies."""
        return self._log.snapshot()

    def forget_requests(self) -> None:
        """Empties `requests`."""
        self._log.clear()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; prints the endpoint first, on a line of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_preempt.testing.gcs.fake", description=main.__doc__
    )
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 for any free port")
    parser.add_argument(
        "--bucket", action="append", help="a bucket that exists; may be repeated (default: bucket)"
    )
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of requests that meet a fault")
    parser.add_argument("--seed", type=int, default=0, help="chooses which requests")
    parser.add_argument("--kinds", default=",".join(DEFAULT_KINDS), help="kinds of fault, comma-separated")
    parser.add_argument("--stall-seconds", type=float, default=Faults.stall_seconds, help="length of a stall")
    rate: dict[str, Any] = {"type": float, "nargs": "+", "default": None, "metavar": "RATE"}
    parser.add_argument("--bytes-per-second", **rate, help="limit of each connection; two of them: up, down")
    parser.add_argument(
        "--machine-bytes-per-second", **rate, help="limit of all connections with one User-Agent together"
    )
    parser.add_argument("--bucket-bytes-per-second", **rate, help="limit of all connections together")
    options = parser.parse_args(arguments)
    kinds = tuple(kind for kind in options.kinds.split(",") if kind)
    try:
        faults = Faults(options.seed, options.fault_rate, kinds, options.stall_seconds)
        gcs = FakeGcs(
            options.bucket or ("bucket",),
            faults,
            options.bytes_per_second,
            machine_bytes_per_second=options.machine_bytes_per_second,
            bucket_bytes_per_second=options.bucket_bytes_per_second,
            port=options.port,
        )
    except ValueError as error:
        parser.error(str(error))
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # Before any thread starts, so that all inherit it.
    with gcs:
        print(gcs.endpoint, flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
