"""One process: the same keys in a dictionary, so that one process and a cluster run the same code."""

from __future__ import annotations

import threading
import time

from keras_preempt.agreement.coordinator import ABORTED, CoordinationTimeout


class LocalCoordinator:
    """A `Coordinator` for a job of one process."""

    member = 0
    members = 1

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put_if_absent(self, key: str, value: str) -> bool:
        """See `Coordinator.put_if_absent`."""
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def wait_for(self, key: str, timeout: float | None) -> str:
        """See `Coordinator.wait_for`."""
        limit = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while key not in self._values:
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    raise CoordinationTimeout(f"The key {key!r} did not appear within {timeout:.1f} s.")
                self._changed.wait(left)
            return self._values[key]

    def delete(self, prefix: str) -> None:
        """See `Coordinator.delete`."""
        with self._changed:
            for key in [k for k in self._values if k == prefix or k.startswith(prefix + "/")]:
                del self._values[key]

    def gone(self) -> frozenset[int]:
        """Nobody else is there to be gone."""
        return frozenset()

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Nobody else is there to be told."""
