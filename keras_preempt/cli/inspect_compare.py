"""``keras-preempt inspect --compare``: compares two checkpoints, tensor by tensor."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.compare import ComparedTensor, SavedState, compare_json, compare_tensors
from keras_preempt.cli.terminal import Terminal
from keras_preempt.process.words import counted
from keras_preempt.report.progress import transfer

_NEWEST = "newest"
_NAMED = 10  # the most differences of other state that are listed


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
    (place, one), (other_place, other) = _read(store, first), _read(store, second)
    tensors = compare_tensors(one.tensors, other.tensors, ("A", "B"))
    return Compared(place, other_place, tensors, compare_json(one.state, other.state, ("A", "B")))


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


def _read(store: Store, which: str) -> tuple[str, SavedState]:
    """Returns where a checkpoint lies, and what it holds."""
    if which == _NEWEST or which.isdecimal():
        info, saved = read_chosen(
            store,
            None if which == _NEWEST else int(which),
            lambda info: SavedState.read(store, info, transfer),
        )
        return f"{store.url}/{info.directory}", saved
    directory, _, step = which.rpartition("@")
    if not directory or not (step == _NEWEST or step.isdecimal()):
        directory, step = which, _NEWEST
    with contextlib.closing(open_store(directory)) as other:
        read_run(other)
        return _read(other, step)
