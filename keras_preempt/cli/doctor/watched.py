"""Reads what a job that the doctor started reports of its training, in the directory that it was given."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import events

_T = TypeVar("_T")


@dataclass
class Watched:
    """The runs below a place, one for each directory that the script passes to a callback.

    Attributes:
        root: The place.
        told: All events, in the order of their times; `look` updates them.
    """

    root: str
    told: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        """Reads the events. A storage that fails is read again next time."""
        found = self._of_each_run(lambda store: events.read(store, lambda gap: None))
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
        """The processes in which the members train, as they have named themselves, by member."""
        return {event["member"]: event.get("process") for event in self.told if event["event"] == "start"}

    def checkpoints(self, since: float, until: float) -> list[Manifest]:
        """The checkpoints that were committed between two moments in seconds since 1970."""
        found = self._of_each_run(lambda store: [info.manifest for info in committed(store)])
        return [each for each in found if each is not None and since <= each.created_at <= until]

    def size(self) -> int:
        """Bytes of the largest checkpoint; 0 if there is none."""
        return max(self._of_each_run(_sizes), default=0)

    def _of_each_run(self, read: Callable[[Store], list[_T]]) -> list[_T]:
        runs = _read(self.root, lambda store: list(store.children("")))
        return [found for run in runs for found in _read(f"{self.root}/{run}", read)]


def size_of(directory: str) -> int:
    """Bytes of the largest checkpoint of a run, its parts together; 0 if there is none, or it cannot be read."""
    return max(_read(directory, _sizes), default=0)


def _sizes(store: Store) -> list[int]:
    return [sum(file.size for file in store.list(info.directory)) for info in committed(store)]


def _read(directory: str, read: Callable[[Store], list[_T]]) -> list[_T]:
    with contextlib.closing(open_store(directory)) as store:
        try:
            return read(store)
        except CheckpointError:
            return []
