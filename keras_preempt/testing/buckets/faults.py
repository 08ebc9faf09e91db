"""What can go wrong between a client and a bucket, on demand or by seed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from keras_preempt.testing.buckets.errors import ERROR_STATUSES
from keras_preempt.testing.server import Fault, OrderedFaults

_ANY = frozenset({*map(str, ERROR_STATUSES), "204", "page", "reset", "stall", "slow"})
_WRITES = _ANY | {"empty-response", "lost-response"}

CONDITIONAL = frozenset({"409", "412"})
"""What can happen only to requests with a precondition, on services that answer so."""

APPLICABLE = {
    "media": _ANY | {"truncated", "corrupted"},
    "read": _ANY,
    "bucket": _ANY,
    "write": _WRITES,
    "upload": _WRITES | {"corrupted-upload"},
    "chunk": _WRITES | {"corrupted-upload"},
}
"""The kinds of fault that can happen to each category of requests, on every service.

``media`` downloads content; ``read`` and ``bucket`` ask for metadata or a listing; ``upload`` carries content in one
request; ``chunk`` is a piece of an upload in several; ``write`` is any other change.
"""

FAULT_KINDS = tuple(sorted({"expired-token", "session-lost"}.union(CONDITIONAL, *APPLICABLE.values())))
"""Every kind of fault: HTTP statuses as text, and what can happen to a connection.

- ``"401"``, ``"403"``, ``"408"``, ``"429"`` (with Retry-After), ``"500"``, ``"502"``, ``"503"``, ``"504"``: answered
  at once, nothing takes effect.
- ``"409"``, ``"412"``: so is a write with a precondition, as if another write had been under way, or the precondition
  did not hold. S3 and Azure only.
- ``"expired-token"``: the credentials of the request are said to have expired. S3 and Azure only.
- ``"204"`` and ``"page"``: something else answers than the service, with success and nothing, or with a page for
  people. Nothing takes effect.
- ``"reset"``: the connection is reset half-way through the request. Nothing takes effect, except that a resumable
  upload to Google keeps the whole multiples of 256 KiB that had arrived.
- ``"stall"``: silence for some seconds; then the request is carried out, whether or not the client still waits.
- ``"slow"``: this one request at `Faults.slow_bytes_per_second`.
- ``"lost-response"``: the change takes effect, then the connection is reset without an answer.
- ``"empty-response"``: the change takes effect, and is answered with success and nothing else.
- ``"truncated"``: a download ends half-way, and the connection with it.
- ``"corrupted"``: one bit of a download is flipped; its headers are right.
- ``"corrupted-upload"``: one bit of an upload is flipped before the service looks at it.
- ``"session-lost"``: an upload in several requests is forgotten, now and for the rest of it: a resumable one to Google
  (410), a multipart one to S3 (404), the uncommitted blocks of a blob on Azure.
"""

DEFAULT_KINDS = ("429", "503", "corrupted", "lost-response", "reset", "stall", "truncated")


def check_kind(kind: str, kinds: Collection[str] = FAULT_KINDS) -> None:
    if kind not in kinds:
        raise ValueError(
            f"Expected a kind of fault out of {', '.join(sorted(kinds))}. Received: {kind!r}. Correct the kind."
        )


@dataclass(frozen=True)
class Faults:
    """Faults that happen by themselves, to a share of all requests.

    Whether one happens depends on the seed, on what is asked for, and on how many times that was asked before,
    but not on what other threads do: two runs that make the same requests see the same faults.

    Attributes:
        seed: With the same seed the same faults happen to the same requests.
        rate: The share of requests to which one happens, 0 to 1. Requests for a bucket's own metadata are excepted:
            the client makes some by itself, in the background, at any time.
        kinds: Which, out of `FAULT_KINDS`; to a request happens one of those that can happen to it.
        stall_seconds: How long a ``"stall"`` lasts.
        retry_after: What a ``"429"`` says in its Retry-After header, in seconds.
        slow_bytes_per_second: How fast a ``"slow"`` request is.

    Raises:
        ValueError: A kind is unknown, or a number is out of its range.
    """

    seed: int = 0
    rate: float = 0.0
    kinds: tuple[str, ...] = DEFAULT_KINDS
    stall_seconds: float = 5.0
    retry_after: int = 1
    slow_bytes_per_second: float = 65536.0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            check_kind(kind)
        if not 0 <= self.rate <= 1:
            raise ValueError(f"Expected a rate from 0 to 1. Received: {self.rate!r}. Correct the rate.")
        if self.stall_seconds < 0 or self.retry_after < 0 or self.slow_bytes_per_second <= 0:
            raise ValueError(
                "Expected stall_seconds and retry_after of at least 0 and slow_bytes_per_second above 0. "
                f"Received: {self.stall_seconds!r}, {self.retry_after!r}, {self.slow_bytes_per_second!r}. "
                "Correct the number."
            )

    def draw(self, what: str, nth: int, applicable: frozenset[str]) -> str | None:
        """The kind of fault that happens to the `nth` request for `what`, or None."""
        kinds = [kind for kind in self.kinds if kind in applicable]
        chance = random.Random(f"{self.seed}|{what}|{nth}")
        return chance.choice(kinds) if kinds and chance.random() < self.rate else None


class FaultPlan:
    """Decides for each request what goes wrong; ordered faults come before seeded ones."""

    def __init__(self, seeded: Faults | None) -> None:
        self.seeded = seeded or Faults()
        self.ordered = OrderedFaults()
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()

    def choose(self, applicable: frozenset[str], what: str, text: str, *, of_bucket: bool) -> Fault | None:
        """The fault that happens to a request, out of those `applicable` to it, or None.

        `what` identifies what is asked for, the same in every run; an ordered fault's `match` is looked for in `text`.
        To requests for a bucket's own metadata (`of_bucket`) happen only faults with a `match`.
        """
        seeded = self.seeded
        ordered = self.ordered.take(
            lambda fault: (
                fault.match in text and fault.kind in applicable and bool(fault.match or not of_bucket)
            )
        )
        if ordered is not None:
            return ordered if ordered.seconds is not None else replace(ordered, seconds=seeded.stall_seconds)
        if of_bucket:
            return None
        with self._lock:
            nth = self._seen[what]
            self._seen[what] += 1
        kind = seeded.draw(what, nth, applicable)
        return None if kind is None else Fault(kind, seeded.stall_seconds)
