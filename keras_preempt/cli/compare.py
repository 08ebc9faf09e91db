"""Compares what two checkpoints hold: bytes of tensors, and the JSON state around them.

What training saw and became decides. Two things in a state are neither, and are reported without deciding:

- The bytes of an input iterator. TensorFlow writes into them what its threads had drawn ahead and how often iterators
  were made, which differs between two runs that hand out the same batches. The position of the input (iterators made,
  batches drawn) is compared, and its batches by the training that came of them.
- The rows of a log file that both runs wrote to, or several workers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.reader import Reading
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array

# Keys of the JSON state that say when or how fast something happened, never what was trained.
VOLATILE_KEYS = frozenset({"timing"})

# Tensors that hold the bytes of an iterator, and the places that say whether a checkpoint has them, and from when:
# snapshots and states of Grain are taken by the clock, so two runs take them at different batches.
ITERATOR_BYTES = frozenset({"input/state", "input/untouched", "input/snapshot"})
_CLOCK = re.compile(r"w\d+/attributes/[^/]+/clocks/.*|callbacks/[^/]+/clocks/.*")
_GRAIN = "input/grain"
_ITERATOR = "iterator internals; the input is compared by the batches that training drew"
_READS_CLOCK = "the code that sets it reads a clock"
_OWN = re.compile(r"w(\d+): (.*)", re.DOTALL)
_ITERATOR_PLACES = re.compile(r"w\d+/(?:input/(?:way|snapshot|grain)|validated/made_at)(?:/[^:]*)?")


@dataclass(frozen=True)
class SavedState:
    """All that a checkpoint holds."""

    tensors: Mapping[str, Array]  # By name; a worker's own after "w<member>: ".
    state: Mapping[str, Any]  # The JSON state of each worker, under "w<member>".

    @classmethod
    def read(cls, store: Store, info: CheckpointInfo, shown: Shown = silent) -> SavedState:
        """Reads a checkpoint and verifies every byte; raises `CheckpointError`."""
        values, workers = Reading(store, info, shown).load_all()
        tensors = dict(values.whole)
        for own in workers:
            tensors.update({f"w{own.member}: {name}": value for name, value in own.local.items()})
        return cls(tensors, {f"w{own.member}": own.state for own in workers})


@dataclass(frozen=True)
class ComparedTensor:
    name: str  # After "w<member>: " if it is a worker's own.
    shape: str  # Type and shape; of both, if they differ.
    difference: str | None  # In words; None if every bit is the same.
    largest: float | None = None  # The greatest absolute difference of numbers; None if it has no meaning.

    def __str__(self) -> str:
        extent = "" if self.largest is None else f", by at most {self.largest:.3g}"
        return f"{self.name}: {self.difference}{extent}"


@dataclass(frozen=True)
class Comparison:
    """All that was compared, and all that differs, in words."""

    members: int = 0
    tensors: int = 0
    compared_bytes: int = 0
    tensor_differences: list[ComparedTensor] = field(default_factory=list)
    state_differences: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)  # Differences that do not decide.
    files: int = 0  # Where files were compared, and not checkpoints of this package.

    @property
    def identical(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.tensors + self.files > 0 and not self.tensor_differences and not self.state_differences

    @property
    def history_equal(self) -> bool:
        return not any("/callbacks/history" in line.lower() for line in self.state_differences)


def combined(named: Sequence[tuple[str, Comparison]]) -> Comparison:
    """Joins the comparisons of several fits, with the name of the fit before each difference."""
    return Comparison(
        max((each.members for _, each in named), default=0),
        sum(each.tensors for _, each in named),
        sum(each.compared_bytes for _, each in named),
        [replace(one, name=f"{name}{one.name}") for name, each in named for one in each.tensor_differences],
        [f"{name}{line}" for name, each in named for line in each.state_differences],
        [f"{name}{line}" for name, each in named for line in each.set_aside],
    )


NAMES = ("the undisturbed run", "the preempted run")


def compare_states(
    left: SavedState,
    right: SavedState,
    set_aside: Callable[[int, str, bytes, bytes], str | None] = lambda member, name, one, other: None,
) -> Comparison:
    """Compares the ends of the undisturbed and of the preempted run.

    `set_aside` is called with a member, the name of a tensor of its own that differs, and the bytes of both; it returns
    in words why that does not decide, or None if it does.
    """
    different: list[ComparedTensor] = []
    state: list[str] = []
    aside: list[str] = []
    for tensor in compare_tensors(left.tensors, right.tensors, NAMES):
        if tensor.difference is None:
            continue
        why = None
        if own := _OWN.match(tensor.name):
            one, other = (
                side[tensor.name].tobytes() if tensor.name in side else b""
                for side in (left.tensors, right.tensors)
            )
            member, name = int(own[1]), own[2]
            if name in ITERATOR_BYTES or name.startswith(_GRAIN):
                why = _ITERATOR
            elif _CLOCK.fullmatch(name):
                why = _READS_CLOCK
            else:
                why = set_aside(member, name, one, other)
        if why is None:
            different.append(tensor)
        else:
            aside.append(f"{tensor}: {why}")
    for line in compare_json(left.state, right.state, names=NAMES):
        place = line.partition(":")[0]
        if _ITERATOR_PLACES.fullmatch(place):
            aside.append(f"{line}: {_ITERATOR}")
        elif _CLOCK.fullmatch(place):
            aside.append(f"{line}: {_READS_CLOCK}")
        else:
            state.append(line)
    size = sum(array.nbytes for array in left.tensors.values())
    return Comparison(len(left.state), len(left.tensors), size, different, state, aside)


def compare_tensors(
    left: Mapping[str, Array], right: Mapping[str, Array], names: tuple[str, str]
) -> list[ComparedTensor]:
    """Compares tensors by name: type, shape and every byte; `names` are those of the two sides.

    A NaN therefore equals the same NaN, and 0.0 does not equal -0.0.
    """
    found = []
    for name in {**left, **right}:
        shapes = [
            f"{side[name].dtype.name}{list(side[name].shape)}" for side in (left, right) if name in side
        ]
        if len(shapes) == 1:
            found.append(ComparedTensor(name, shapes[0], f"only in {names[name not in left]}"))
            continue
        difference, largest = _compare_arrays(left[name], right[name])
        found.append(ComparedTensor(name, ", ".join(dict.fromkeys(shapes)), difference, largest))
    return found


def compare_json(left: Any, right: Any, names: tuple[str, str]) -> list[str]:
    """Compares JSON values deeply, types included, without the keys in `VOLATILE_KEYS`; NaN equals NaN."""
    return [line.lstrip("/") for line in _json_differences(left, right, "", names)]


def _json_differences(left: Any, right: Any, path: str, names: tuple[str, str]) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted((left.keys() | right.keys()) - VOLATILE_KEYS, key=str):
            inner = f"{path}/{key}"
            if key not in left or key not in right:
                yield f"{inner}: only in {names[key not in left]}"
            else:
                yield from _json_differences(left[key], right[key], inner, names)
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            # Entries of lists of unequal length do not correspond to each other.
            yield f"{path}: {len(left)} and {len(right)} entries"
            return
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _json_differences(one, other, f"{path}/{index}", names)
    elif type(left) is not type(right) or not (left == right or (_is_nan(left) and _is_nan(right))):
        shown = [text if len(text) <= 60 else f"{text[:57]}..." for text in map(repr, (left, right))]
        yield f"{path}: {' and '.join(shown)}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _compare_arrays(left: Array, right: Array) -> tuple[str | None, float | None]:
    """Returns what differs, in words, and by how much at most."""
    if left.dtype != right.dtype:
        return f"types {left.dtype} and {right.dtype}", None
    if left.shape != right.shape:
        return f"shapes {left.shape} and {right.shape}", None
    if np.array_equal(_bytes(left), _bytes(right)):
        return None, None
    size = left.dtype.itemsize
    unequal = (_bytes(left).reshape(-1, size) != _bytes(right).reshape(-1, size)).any(axis=1)
    difference = f"{int(unequal.sum())} of {left.size} values"
    try:
        distance = np.abs(left.astype(np.float64) - right.astype(np.float64))
    except (TypeError, ValueError):
        return difference, None
    finite = distance[np.isfinite(distance)]
    return difference, float(finite.max()) if finite.size else None


def _bytes(array: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
