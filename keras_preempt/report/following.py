"""The events of one start of a job as they are written, read again and again."""

from __future__ import annotations

from typing import Any

from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import events


class Following:
    """Follows what worker 0 and the launcher tell in one start.

    Args:
        store: The run's directory. In a bucket each object of a log is read once: such objects do not grow.
        incarnation: The number of the start.
    """

    def __init__(self, store: Store, incarnation: int) -> None:
        self._store = store
        self._grows = isinstance(store, LocalStore)
        self._log = events.log_name(incarnation, 0).rpartition("/")[2].removesuffix(".jsonl")
        self._launchers = events.launcher_log_name(incarnation).rpartition("/")[2]
        self._known: dict[str, int] = {}  # How many events of a file were returned already.

    def news(self) -> list[dict[str, Any]]:
        """Returns the events that have come since the last call, worker 0's first.

        Raises:
            UnsupportedFormat: The log was written in a newer format.
            StoreUnavailable: The storage failed.
        """
        found: list[dict[str, Any]] = []
        for name in self._store.children(EVENTS):
            ours = name == f"{self._log}.jsonl" or (
                name.startswith(f"{self._log}-") and name.endswith(".jsonl")
            )
            if not ours and name != self._launchers:
                continue
            if name in self._known and not self._grows:
                continue
            try:
                data = self._store.read(f"{EVENTS}/{name}", limit=events.LARGEST)
            except NotFound:  # Removed since it was listed.
                continue
            # A line that is only half there is returned when it is whole.
            told = events.parse(name, data[: data.rfind(b"\n") + 1])
            found += told[self._known.get(name, 0) :]
            self._known[name] = len(told)
        return found
