"""``keras-preempt inspect --compare``: compares two checkpoints, tensor by tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.reader import CheckpointInfo, Reading
from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.cli.compare import compare_json, compare_tensors
from keras_preempt.cli.terminal import Terminal
from keras_preempt.process.words import counted
from keras_preempt.report.progress import transfer

_NEWEST = "newest"
_NAMED = 10  # the most differences of other state that are listed


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor of one of the two checkpoints, or of both.

    Attributes:
        name: Its name, after "w<member>: " if it is a worker's own.
        shape: Type and shape; of both, if they differ.
        difference: What differs, in words; None if every bit is the same.
        largest: The greatest absolute difference of numbers; None if it has no meaning.
    """

    name: str
    shape: str
    difference: str | None
    largest: float | None


@dataclass(frozen=True)
class Compared:
    """The result of a comparison.

    Attributes:
        first: The folder of the first checkpoint, with its directory.
        second: The folder of the second one.
        tensors: All tensors.
        state: Lines naming the places that differ in the JSON state, and both values.
    """

    first: str
    second: str
    tensors: list[ComparedTensor]
    state: list[str]

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.state and all(tensor.difference is None for tensor in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {"identical": self.identical, **asdict(self)}


def compare_checkpoints(store: Store, first: str, second: str) -> Compared:
    """Reads, verifies and compares two checkpoints.

    Args:
        store: The run's directory.
        first: A step, "newest", or another run's directory, with @STEP or without for its newest.
        second: The same for the second checkpoint.

    Raises:
        CheckpointError: One cannot be read.
        ValueError: One cannot be the name of a directory.
    """
    one, other = _read(store, first), _read(store, second)
    tensors = []
    for name in [*one.tensors, *(name for name in other.tensors if name not in one.tensors)]:
        tensors.append(_compared(name, one.tensors.get(name), other.tensors.get(name)))
    state = compare_json(one.state, other.state, names=("A", "B"))
    return Compared(one.place, other.place, tensors, [line.lstrip("/") for line in state])


def print_differences(terminal: Terminal, compared: Compared) -> None:
    """Prints a row for each tensor, then what else differs, then the verdict."""
    rows = []
    for tensor in compared.tensors:
        largest = "" if tensor.largest is None else f"{tensor.largest:.3g}"
        rows.append([one_line(tensor.name), tensor.shape, tensor.difference or "identical", largest])
    terminal.table(
        f"A: {one_line(compared.first)}\nB: {one_line(compared.second)}",
        ["tensor", "type", "compared", "by at most"],
        rows,
    )
    for line in compared.state[:_NAMED]:
        terminal.line(f"  other state: {one_line(line)}", style="red")
    if len(compared.state) > _NAMED:
        terminal.line(f"  and {len(compared.state) - _NAMED} more places of other state")
    if compared.identical:
        terminal.line(f"identical: {counted(len(rows), 'tensor')}, and all other state", style="bold green")
        return
    differing = sum(tensor.difference is not None for tensor in compared.tensors)
    terminal.line(
        f"different: {differing} of {counted(len(rows), 'tensor')}, {counted(len(compared.state), 'place')} of other "
        "state",
        style="bold red",
    )


@dataclass(frozen=True)
class _Content:
    place: str
    tensors: dict[str, Array]
    state: Mapping[str, Any]


def _read(store: Store, which: str) -> _Content:
    if which == _NEWEST or which.isdecimal():
        return _content(store, None if which == _NEWEST else int(which))
    directory, _, step = which.rpartition("@")
    if not directory or not (step == _NEWEST or step.isdecimal()):
        directory, step = which, _NEWEST
    with contextlib.closing(open_store(directory)) as other:
        read_run(other)
        return _content(other, None if step == _NEWEST else int(step))


def _content(store: Store, step: int | None) -> _Content:
    def read(info: CheckpointInfo) -> tuple[dict[str, Array], dict[str, Any]]:
        tensors, workers = Reading(store, info, transfer).load_all()
        for own in workers:
            tensors.update({f"w{own.member}: {name}": value for name, value in own.local.items()})
        return tensors, {f"w{own.member}": own.state for own in workers}

    info, (tensors, state) = read_chosen(store, step, read)
    return _Content(f"{store.url}/{info.directory}", tensors, state)


def _compared(name: str, one: Array | None, other: Array | None) -> ComparedTensor:
    if one is None or other is None:
        there = one if one is not None else other
        return ComparedTensor(name, _shape(there), f"only in {'A' if other is None else 'B'}", None)
    shape = _shape(one) if _shape(one) == _shape(other) else f"{_shape(one)}, {_shape(other)}"
    found = compare_tensors({name: one}, {name: other})
    if not found:
        return ComparedTensor(name, shape, None, None)
    return ComparedTensor(name, shape, found[0].reason, found[0].max_difference)


def _shape(array: np.ndarray[Any, Any] | None) -> str:
    return "" if array is None else f"{array.dtype.name}{list(array.shape)}"
