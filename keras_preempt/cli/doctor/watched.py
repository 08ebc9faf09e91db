"""What a job that the doctor has started tells about its training, in the directory that it was given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events

__all__ = ["Watched"]


@dataclass
class Watched:
    """The runs below a place: one for each directory that the script passes to a callback.

    Attributes:
        root: The place.
        told: All events, in the order of their times. Renewed by `look`.
    """

    root: str
    told: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        """Reads what has been told. A storage that fails is looked at again next time."""
        found = []
        for run in self._runs():
            store = open_store(f"{self.root}/{run}")
            try:
                found += events.read(store, lambda gap: None)
            except CheckpointError:
                continue
            finally:
                store.close()
        self.told = sorted(found, key=lambda event: event["time"])

    def has(self, kind: str, since: float = 0.0, until: float = math.inf) -> bool:
        """Whether there is an event of a kind, between two moments in seconds since 1970."""
        return any(event["event"] == kind and since <= event["time"] <= until for event in self.told)

    def trains(self) -> bool:
        """Whether every worker of the newest fit has done a step."""
        starts = [event for event in self.told if event["event"] == "start"]
        if not starts:
            return False
        newest = starts[-1]
        stepped = {
            event["member"]
            for event in self.told
            if event["event"] == "first_step" and event["incarnation"] == newest["incarnation"]
        }
        return len(stepped) >= int(newest.get("members") or 1)

    def processes(self) -> dict[int, object]:
        """Which process each member has named itself, by member."""
        return {event["member"]: event.get("process") for event in self.told if event["event"] == "start"}

    def checkpoints(self, since: float, until: float) -> list[Manifest]:
        """The checkpoints that were committed between two moments in seconds since 1970."""
        found = []
        for run in self._runs():
            store = open_store(f"{self.root}/{run}")
            try:
                found += [info.manifest for info in committed(store) if info.manifest is not None]
            except CheckpointError:
                continue
            finally:
                store.close()
        return [manifest for manifest in found if since <= manifest.created_at <= until]

    def size(self) -> int:
        """Bytes of the largest checkpoint; 0 if there is none."""
        return max((size_of(f"{self.root}/{run}") for run in self._runs()), default=0)

    def _runs(self) -> list[str]:
        store = open_store(self.root)
        try:
            return list(store.children(""))
        except CheckpointError:
            return []
        finally:
            store.close()


def size_of(directory: str) -> int:
    """Bytes of the largest checkpoint of a run, its parts together; 0 if there is none, or it cannot be read."""
    store = open_store(directory)
    try:
        return max(
            (sum(file.size for file in store.list(info.directory)) for info in committed(store)),
            default=0,
        )
    except CheckpointError:
        return 0
    finally:
        store.close()
