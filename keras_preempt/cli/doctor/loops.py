"""Custom loops in a trial. They report no events, so it is followed by what else they show of themselves."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_preempt.report.status import process_file

_HANDLER = "PreemptionCheckpointHandler"
_FIRST_RUNS = 5.0  # seconds for the loop to restore and to get into its first runs


def uses_handler(command: Sequence[str]) -> bool:
    """Whether a script that a command names uses a `PreemptionCheckpointHandler`, as far as its text shows."""
    return any(_HANDLER in text for text in _texts(command))


def _texts(command: Sequence[str]) -> Iterator[str]:
    # The words of a shell's line, too.
    words = [*command, *(word for argument in command for word in re.split(r"[\s;&|()]+", argument))]
    for before, word in itertools.pairwise(["", *words]):
        module = word.replace(".", "/")
        for name in (f"{module}.py", f"{module}/__main__.py") if before == "-m" else (word,):
            if name.endswith(".py"):
                with contextlib.suppress(OSError, ValueError):
                    yield Path(name).read_text("utf-8", errors="replace")


@dataclass
class Loops:
    """The custom loops of a trial, one in each worker.

    Each says which process it is when it begins to listen for notices, as it does for `keras-preempt run`.

    Args:
        folder: Where they say so.
        workers: How many there are here.
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

    def run(self) -> bool:
        """Whether all listen, and have had a moment to begin."""
        if len(self.processes()) < self.workers:
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() >= self._since + _FIRST_RUNS
