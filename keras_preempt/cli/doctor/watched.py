"""What a job that the doctor has started shows of itself: its events, its custom loops, the end of its output."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import events
from keras_preempt.report.status import process_file

_T = TypeVar("_T")


@dataclass
class Watched:
    """The runs below a place, one for each directory that the script passes to a callback."""

    root: str
    reported: list[dict[str, Any]] = field(default_factory=list)  # All events, in order; see `look`.

    def look(self) -> None:
        """Reads the events. A storage that fails is read again next time."""
        found = self._of_each_run(lambda store: events.read(store, lambda gap: None))
        self.reported = sorted(found, key=lambda event: event["time"])

    def has(self, kind: str, since: float = 0.0, until: float = math.inf) -> bool:
        """Whether there is an event of a kind, between two moments in seconds since 1970."""
        return any(event["event"] == kind and since <= event["time"] <= until for event in self.reported)

    def trains(self) -> bool:
        """Whether every worker of the newest fit has done a step."""
        starts = [event for event in self.reported if event["event"] == "start"]
        if not starts:
            return False
        stepped = {
            event["member"]
            for event in self.reported
            if event["event"] == "first_step" and event["incarnation"] == starts[-1]["incarnation"]
        }
        return len(stepped) >= int(starts[-1].get("members") or 1)

    def processes(self) -> dict[int, object]:
        """The processes in which the members train, as they have named themselves, by member."""
        return {event["member"]: event.get("process") for event in self.reported if event["event"] == "start"}

    def saved_step(self, since: float, until: float) -> int | None:
        """The latest step that was committed between two moments in seconds since 1970."""
        found = self._of_each_run(lambda store: [info.manifest for info in committed(store)])
        steps = [each.step for each in found if each is not None and since <= each.created_at <= until]
        return max(steps, default=None)

    def size(self) -> int:
        return max(self._of_each_run(_sizes), default=0)

    def _of_each_run(self, read: Callable[[Store], list[_T]]) -> list[_T]:
        runs = _read(self.root, lambda store: list(store.children("")))
        return [found for run in runs for found in _read(f"{self.root}/{run}", read)]


def largest_checkpoint(directory: str) -> int:
    """Bytes of the largest checkpoint of a run; 0 if there is none, or it cannot be read."""
    return max(_read(directory, _sizes), default=0)


def _sizes(store: Store) -> list[int]:
    return [sum(file.size for file in store.list(info.directory)) for info in committed(store)]


def _read(directory: str, read: Callable[[Store], list[_T]]) -> list[_T]:
    with contextlib.closing(open_store(directory)) as store:
        try:
            return read(store)
        except CheckpointError:
            return []


_HANDLER = "PreemptionCheckpointHandler"
_FIRST_RUNS = 5.0  # seconds for the loop to restore and to get into its first runs


def uses_handler(command: Sequence[str]) -> bool:
    """Whether a script that a command names uses a `PreemptionCheckpointHandler`, as far as its text shows."""
    # The words of a shell's line, too.
    words = [*command, *(word for argument in command for word in re.split(r"[\s;&|()]+", argument))]
    for before, word in itertools.pairwise(["", *words]):
        module = word.replace(".", "/")
        for name in (f"{module}.py", f"{module}/__main__.py") if before == "-m" else (word,):
            if name.endswith(".py"):
                with contextlib.suppress(OSError, ValueError):
                    if _HANDLER in Path(name).read_text("utf-8", errors="replace"):
                        return True
    return False


@dataclass
class Loops:
    """The custom loops of a trial, one in each worker. They report no events.

    Each says in `folder` which process it is when it begins to listen for notices, as it does for `keras-preempt run`.
    """

    folder: Path
    workers: int
    _since: float | None = field(default=None, init=False)

    def processes(self) -> dict[int, object]:
        """The processes in which the members listen, as they have named themselves, by member."""
        found: dict[int, object] = {}
        for path in self.folder.glob(process_file(0).replace("0", "*")):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.stem.rpartition("-")[2])] = json.loads(path.read_text("utf-8"))
        return found

    def trains(self) -> bool:
        """Whether all listen, and have had a moment to begin."""
        if len(self.processes()) < self.workers:
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() >= self._since + _FIRST_RUNS


_KEPT, _SHOWN = 60, 6  # lines
_LONGEST = 300  # characters of a line

_NOISE = re.compile(
    # TensorFlow's and absl's log but for fatal errors; its start writes errors as well, of GPUs that are not there.
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] |[IWE]\d{4} [\d:.]+ +\d+ "
    r"|WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable the following instructions: |Skipping registering GPU devices"
    r"|[\s~^]*$"  # Nothing, and what Python writes below the line of an error.
)
_FRAME = re.compile(r'\s+File ".*", line \d+')


class LastLines:
    """The end of an output: that of a traceback, without what TensorFlow writes when it starts."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)

    def add(self, line: str) -> None:
        if not _NOISE.match(line):
            self._lines.append(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ...")

    def __str__(self) -> str:
        """The last of them; of a traceback those from its innermost frame on."""
        lines = list(self._lines)
        frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
        return " | ".join(line.strip() for line in lines[frames[-1] if frames else 0 :][-_SHOWN:])
