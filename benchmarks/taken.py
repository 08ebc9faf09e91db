"""For the benchmarks of snapshots: the snapshots of the input that this process takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from keras_preempt.backend.tensorflow.backend import TensorFlowBackend
from keras_preempt.state.snapshots import Snapshots

_TAP: Callable[[Any], Any] = TensorFlowBackend.tap


def allow_snapshots(allowed: bool) -> None:
    """Decides whether the fits that begin from now on may take snapshots; without them, they replay their input."""
    tap = _TAP if allowed else lambda distributed: None
    TensorFlowBackend.tap = staticmethod(tap)  # type: ignore[assignment]


class Taken:
    """Records the snapshots that are taken from now on.

    Attributes:
        seconds: How long each took.
        of: What has taken the newest one; None if there is none.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.of: Snapshots | None = None
        original = Snapshots.take

        def take(snapshots: Snapshots, batches: int) -> bool:
            self.of = snapshots
            began = time.perf_counter()
            taken = original(snapshots, batches)
            self.seconds.append(time.perf_counter() - began)
            return taken

        Snapshots.take = take  # type: ignore[method-assign]

    def forget(self) -> None:
        """Begins anew."""
        self.seconds.clear()
        self.of = None

    @property
    def size(self) -> int:
        """Bytes of the newest one."""
        return 0 if self.of is None else self.of.held
