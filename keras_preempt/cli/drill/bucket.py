"""A bucket of one's own, with faults on demand, in which a drill keeps its checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping

from keras_preempt.testing import FakeGcs, Faults

__all__ = ["MIXES", "DrillBucket", "drill_bucket"]

MIXES: Mapping[str, tuple[str, ...]] = {
    "errors": ("429", "500", "503"),
    "resets": ("reset", "truncated"),
    "lost-responses": ("lost-response",),
    "stalls": ("stall",),
    "corruption": ("corrupted", "corrupted-upload"),
    "all": (
        *("429", "500", "503", "reset", "truncated", "lost-response", "stall"),
        *("corrupted", "corrupted-upload"),
    ),
}
"""By name, what goes wrong; docs/testing.md says what each kind does."""

RATE = 0.1
"""Share of all requests that meet a fault."""

STALL_SECONDS = 2.0

_BUCKET = "drill"


class DrillBucket:
    """The running bucket.

    Attributes:
        place: Where in it the runs go.
    """

    place = f"gs://{_BUCKET}"

    def __init__(self, gcs: FakeGcs, mix: str, seed: int) -> None:
        self._gcs = gcs
        self._faults = Faults(seed=seed, rate=RATE, kinds=MIXES[mix], stall_seconds=STALL_SECONDS)

    def begin_faults(self) -> None:
        """From now on requests meet faults."""
        self._gcs.faults = self._faults

    def end_faults(self) -> None:
        """From now on they do not."""
        self._gcs.faults = Faults()

    def summary(self) -> str:
        """Says how many requests met which fault."""
        requests = self._gcs.requests
        met = Counter(request.fault for request in requests if request.fault is not None)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(met.items()))
        return f"{sum(met.values())} of {len(requests)} requests to the bucket met a fault: {told or 'none'}"


@contextlib.contextmanager
def drill_bucket(mix: str, seed: int) -> Iterator[DrillBucket]:
    """Brings a bucket up, to which ``gs://`` leads in this process and the workers that it starts."""
    with contextlib.ExitStack() as stack:
        gcs = stack.enter_context(FakeGcs(buckets=(_BUCKET,)))
        before = {name: os.environ.get(name) for name in gcs.environment()}
        stack.callback(_put_back, before)
        os.environ.update(gcs.environment())
        yield DrillBucket(gcs, mix, seed)


def _put_back(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
