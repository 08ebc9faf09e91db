"""What `FakeGcs`, `FakeS3` and `FakeAzure` have in common: a server of one service's API, and what tests ask of it."""

from __future__ import annotations

import abc
import argparse
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from keras_preempt.testing.buckets.calls import AnyApi
from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.faults import DEFAULT_KINDS, FaultPlan, Faults, check_kind
from keras_preempt.testing.buckets.objects import (
    Buckets,
    ObjectBytes,
    ObjectSummary,
    StoredObject,
    no_condition,
)
from keras_preempt.testing.buckets.wire import BucketServer, RateLimits, Request
from keras_preempt.testing.server import Fake, Fault, RequestLog


class FakeBucket(Fake[BucketServer]):
    """A service that stores objects in buckets, for as long as a ``with`` block lasts."""

    operations: ClassVar[Collection[str]]
    """What `deny` can name."""

    policy_names: ClassVar[Collection[str]]
    """What `policies` can name."""

    api_type: ClassVar[type[AnyApi]]

    def __init__(
        self,
        faults: Faults | None,
        limits: RateLimits,
        deny: Collection[str],
        port: int,
        buckets: Callable[[Collection[str]], Buckets],
    ) -> None:
        self._limits = limits
        self._denied: set[str] = set()
        self.deny = deny
        self._plan = FaultPlan(faults)
        self._log: RequestLog[Request] = RequestLog()
        self._buckets = buckets(self._denied)
        self._port = port
        self._clients: list[Any] = []

    @abc.abstractmethod
    def _new_api(self, port: int) -> AnyApi:
        """The API as it is to be served on a port."""

    def _new_server(self) -> BucketServer:
        server = BucketServer(type(self).__name__, self._port, self._plan, self._log, self._limits)
        server.api = self._new_api(server.port)
        return server

    def _stop(self, server: BucketServer) -> None:
        server.stop()
        for client in self._clients:
            client.close()
        self._clients.clear()

    @property
    def endpoint(self) -> str:
        """The address, such as ``http://127.0.0.1:12345``."""
        return self._running().api.endpoint

    @abc.abstractmethod
    def environment(self) -> dict[str, str]:
        """Environment variables with which a child process finds this server instead of the real one."""

    @property
    def deny(self) -> set[str]:
        """The denied operations. The set may be changed or replaced at any time."""
        return self._denied

    @deny.setter
    def deny(self, operations: Collection[str]) -> None:
        denied = {operations} if isinstance(operations, str) else set(operations)
        unknown = denied - set(self.operations)
        if unknown:
            raise ValueError(
                f"Expected operations out of {', '.join(self.operations)} to deny. Received: {sorted(unknown)}. "
                "Correct the operation."
            )
        # In place, since the buckets hold this set, and in one step, so that no request sees half of the change.
        self._denied.symmetric_difference_update(self._denied ^ denied)

    @property
    def policies(self) -> Collection[str]:
        """Settings that refuse operations to everybody: `policy_names` has those of this service."""
        return self._buckets.policies

    @policies.setter
    def policies(self, policies: Collection[str]) -> None:
        if unknown := set(policies) - set(self.policy_names):
            raise ValueError(
                f"Expected policies out of {', '.join(self.policy_names)}. Received: {sorted(unknown)}. Correct the "
                "policy."
            )
        self._buckets.policies = tuple(policies)

    @property
    def versioned(self) -> bool:
        """Whether the buckets keep versions of what is replaced or deleted. May be set."""
        return self._buckets.versioned

    @versioned.setter
    def versioned(self, versioned: bool) -> None:
        self._buckets.versioned = versioned

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
            kind: One of `FAULT_KINDS` that can happen on this service.
            times: How many requests fail.
            match: Only requests whose `Request.text`, ``METHOD path?query bucket/object``, contains this. Without it,
                requests for a bucket's own metadata do not fail, since clients make some by themselves.
            stall_seconds: How long a ``"stall"`` lasts; that of `faults` by default.

        Raises:
            ValueError: The kind is unknown, or `times` is below 1.
        """
        check_kind(kind, frozenset[str]().union(*self.api_type.applicable.values()))
        if times < 1:
            raise ValueError(f"Expected times of at least 1. Received: {times!r}. Correct the number.")
        self._plan.ordered.add(Fault(kind, stall_seconds, times, match))

    @property
    def pending_faults(self) -> int:
        """How many faults of `fail_next` have not happened yet."""
        return self._plan.ordered.pending()

    @property
    def unauthenticated(self) -> bool:
        """Whether every request is refused as one without credentials. May be set."""
        return self._running().api.unauthenticated

    @unauthenticated.setter
    def unauthenticated(self, refuse: bool) -> None:
        self._running().api.unauthenticated = refuse

    def objects(self, bucket: str) -> dict[str, ObjectSummary]:
        """What a bucket holds, sorted by name. Raises KeyError if there is no such bucket."""
        return {
            name: ObjectSummary(stored.generation, len(stored.content), stored.body.crc32c, stored.metadata)
            for name, stored in self._stored(bucket).items()
        }

    def _stored(self, bucket: str) -> Mapping[str, StoredObject]:
        try:
            return self._buckets.objects(bucket)
        except ServiceError as error:
            raise KeyError(
                f"Expected a bucket that exists. Received: {bucket!r}. Name it in {type(self).__name__}(...)."
            ) from error

    def content(self, bucket: str, name: str) -> bytes:
        """The content of an object. Raises KeyError if there is no such object."""
        return self._stored(bucket)[name].content

    def put(self, bucket: str, name: str, content: bytes) -> int:
        """Stores an object without a request, replacing any that is there; returns its generation."""
        return self._buckets.insert(bucket, name, ObjectBytes(content), {}, no_condition).generation

    def remove(self, bucket: str, name: str) -> None:
        """Removes an object without a request."""
        self._buckets.delete(bucket, name, no_condition)

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


def serve(fake: Callable[..., FakeBucket], program: str, arguments: Sequence[str] | None) -> int:
    """Runs a fake as a process of its own: the command line of its module."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="Serves until SIGINT or SIGTERM; prints the endpoint first, on a line of its own.",
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
        service = fake(
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
    with service:
        print(service.endpoint, flush=True)
        signal.sigwait(ends)
    return 0
