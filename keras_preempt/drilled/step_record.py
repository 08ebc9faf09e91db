"""What a drill records of every boundary: where training stood, and checksums of its state.

Two recorded runs can be compared step by step, so that a drill can say from which step on they differ. It costs time
at every step, so only drills do it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.checked_file import extended
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.drilled.places import record_name
from keras_preempt.process import environment

SUMMED_AT_ONCE = 64 << 20
"""Bytes of state of which a checksum is made at every execution; a larger one is summed at every second, third, ..."""

_GROUPS = {"model": "weights", "optimizer": "optimizer", "metrics": "metrics"}
_SEEDS = ("seed_generator_state", "global_seed")


@dataclass(frozen=True)
class Begun:
    """How a fit begins."""

    step: int  # Training steps done before.
    restored: str  # The checkpoint that it continues from; empty for none.
    why: Sequence[str]  # What speaks against an exact continuation after a restart, in words.
    unsaved: Sequence[str] = ()  # Callbacks whose state is not kept over a restart.
    fit: str = ""  # Its place below the directory of the drill.
    directory: str = ""  # That place as the script names it.
    files: Mapping[str, str] = field(default_factory=dict)
    """Part of the state, by the name that it has for them."""

    shared: Sequence[str] = ()  # What the training data shares with other data of the fit, in words.
    condition: str = ""  # What an exact continuation depends on and cannot be seen, in words.


class StepRecord:
    """One worker's record of its fits: a line of JSON at every boundary, handed to the system at once.

    `capture` returns the tensors of the state by name, and `size` is their size in bytes. There are
    `steps_per_execution` training steps between two boundaries.
    """

    def __init__(
        self, path: Path, capture: Callable[[], Mapping[str, Array]], size: int, steps_per_execution: int
    ) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)  # A process that is killed loses no line.
        self._capture = capture
        self._stride = 1 + size // SUMMED_AT_ONCE
        self._steps_per_execution = steps_per_execution

    @classmethod
    def from_environment(
        cls,
        member: int,
        capture: Callable[[], Mapping[str, Array]],
        size: int,
        steps_per_execution: int = 1,
    ) -> StepRecord | None:
        """Opens the record where the drill wants it; None if there is no drill."""
        folder = os.environ.get(environment.DRILL_RECORD)
        if not folder:
            return None
        number = os.environ.get(environment.INCARNATION, "0")
        path = Path(folder) / record_name(int(number) if number.isdecimal() else 0, member)
        return cls(path, capture, size, steps_per_execution)

    def begin(self, begun: Begun) -> None:
        self._write({"what": "begin", **asdict(begun), "exact": not begun.why})

    def boundary(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        step = position.step or 0
        line: dict[str, Any] = {"what": "at", "phase": position.phase, "epoch": position.epoch}
        line |= {"batch": position.batch, "step": step}
        execution = step // self._steps_per_execution
        if position.phase == "end" or (position.phase == "train" and execution % self._stride == 0):
            line["digests"] = digests(self._capture())
            line["logs"] = {key: float(value) for key, value in (logs or {}).items() if np.ndim(value) == 0}
        self._write(line)

    def sources(self, found: Iterable[str]) -> None:
        """Records what draws from a state that no checkpoint holds, as far as TensorFlow shows it."""
        self._write({"what": "sources", "found": list(found)})

    def missed(self, callbacks: Iterable[str]) -> None:
        """Records an error in callbacks whose state was not kept; the record may have ended, as training has."""
        with self._path.open("ab", buffering=0) as file:
            file.write(_encoded({"what": "missed", "callbacks": list(callbacks)}))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(_encoded(line))


def _encoded(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(line, separators=(",", ":")) + "\n").encode()


def digests(tensors: Mapping[str, Array]) -> dict[str, str]:
    """Returns one checksum for each group of tensors: weights, optimizer, metrics, seeds and the others."""
    sums: dict[str, int] = {}
    for name in sorted(tensors):
        value = tensors[name]
        group = _GROUPS.get(name.partition("/")[0], "other state")
        if any(word in name for word in _SEEDS):
            group = "random seeds"
        if value.dtype.hasobject:  # Strings.
            data = np.frombuffer(repr(value.tolist()).encode(), np.uint8)
        else:
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        sums[group] = extended(sums.get(group, 0), data)
    return {group: f"{crc32c:08x}" for group, crc32c in sorted(sums.items())}
