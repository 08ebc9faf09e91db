"""The last lines of a command's output: the end of a traceback, without what TensorFlow writes when it starts."""

from __future__ import annotations

import re
from collections import deque

_KEPT = 60  # lines
_SHOWN = 6  # lines
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
    """Keeps the end of an output, line by line."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)

    def add(self, line: str) -> None:
        """Adds a line."""
        if not _NOISE.match(line):
            self._lines.append(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ...")

    def __str__(self) -> str:
        """Returns the last of them; of a traceback those from its innermost frame on."""
        lines = list(self._lines)
        frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
        return " | ".join(line.strip() for line in lines[frames[-1] if frames else 0 :][-_SHOWN:])

    def __bool__(self) -> bool:
        """Whether there is a line to show."""
        return bool(self._lines)
