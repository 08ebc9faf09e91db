"""Compares two final training states: bytes of tensors, and the JSON state around them. Pure.

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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Keys of the JSON state that say when or how fast something happened, never what was trained.
VOLATILE_KEYS = frozenset({"timing"})

# Tensors that hold the bytes of an iterator, and the places that say whether a checkpoint has them, and from when:
# snapshots and states of Grain are taken by the clock, so two runs take them at different batches.
ITERATOR_BYTES = frozenset({"input/state", "input/untouched", "input/snapshot"})
_CLOCK = re.compile(r"w\d+/attributes/[^/]+/clocks/.*|callbacks/[^/]+/clocks/.*")
_GRAIN = "input/grain"
_ITERATOR_PLACES = re.compile(r"w\d+/(?:input/(?:way|snapshot|grain)|validated/made_at)(?:/[^:]*)?")


@dataclass(frozen=True)
class MemberState:
    """What one member of a cluster would resume from.

    Attributes:
        mirrored: Tensors that are equal on all members.
        local: Tensors that only this member has.
        state: JSON value: callback state, History, random state, input position.
    """

    mirrored: Mapping[str, np.ndarray[Any, Any]]
    local: Mapping[str, np.ndarray[Any, Any]]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that differs.

    Attributes:
        name: Its name, after "w<member>: " if it is local to a member.
        reason: What differs.
        max_difference: Greatest absolute difference of numbers; None if it has no meaning.
    """

    name: str
    reason: str
    max_difference: float | None = None

    def __str__(self) -> str:
        extent = "" if self.max_difference is None else f", by at most {self.max_difference:.3g}"
        return f"{self.name}: {self.reason}{extent}"


@dataclass(frozen=True)
class Comparison:
    """All that was compared, and all that differs.

    Attributes:
        members: Cluster members compared.
        tensors: Tensors compared.
        compared_bytes: Bytes of them.
        tensor_differences: The tensors that differ.
        state_differences: Lines naming the place in the JSON state and both values.
        set_aside: Lines about differences that do not decide.
    """

    members: int = 0
    tensors: int = 0
    compared_bytes: int = 0
    tensor_differences: list[TensorDifference] = field(default_factory=list)
    state_differences: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.tensors > 0 and not self.tensor_differences and not self.state_differences

    @property
    def history_equal(self) -> bool:
        """Whether no difference lies in a History."""
        return not any("/callbacks/history" in line.lower() for line in self.state_differences)


def combined(named: Sequence[tuple[str, Comparison]]) -> Comparison:
    """Joins the comparisons of several fits, with the name of the fit before each difference."""

    def of(name: str, difference: TensorDifference) -> TensorDifference:
        return TensorDifference(f"{name}{difference.name}", difference.reason, difference.max_difference)

    return Comparison(
        max((each.members for _, each in named), default=0),
        sum(each.tensors for _, each in named),
        sum(each.compared_bytes for _, each in named),
        [of(name, difference) for name, each in named for difference in each.tensor_differences],
        [f"{name}{line}" for name, each in named for line in each.state_differences],
        [f"{name}{line}" for name, each in named for line in each.set_aside],
    )


def compare_states(
    left: Sequence[MemberState],
    right: Sequence[MemberState],
    set_aside: Callable[[int, str, bytes, bytes], str | None] = lambda member, name, one, other: None,
) -> Comparison:
    """Compares the states of all members, in order.

    Mirrored tensors are the same stored bytes for every member, so they are compared once, for the first.

    Args:
        left: The states of the undisturbed run.
        right: The states of the preempted run.
        set_aside: Called with a member, the name of a local tensor that differs, and the bytes of both; returns in
            words why that does not decide, or None if it does.
    """
    tensors: list[TensorDifference] = []
    state: list[str] = []
    aside: list[str] = []
    count = size = 0
    if len(left) != len(right):
        state.append(f"members: {len(left)} and {len(right)}")
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        groups = [(f"w{index}: ", one.local, other.local)]
        if index == 0:
            groups.insert(0, ("", one.mirrored, other.mirrored))
        for prefix, ones, others in groups:
            for difference in compare_tensors(ones, others, prefix):
                name = difference.name.removeprefix(prefix)
                why = _why_aside(index, name, ones, others, set_aside) if prefix else None
                if why is None:
                    tensors.append(difference)
                else:
                    aside.append(f"{difference}: {why}")
            count += len(ones)
            size += sum(array.nbytes for array in ones.values())
        for line in compare_json(one.state, other.state, f"w{index}"):
            why = _why_place_aside(line.partition(":")[0])
            (state if why is None else aside).append(line if why is None else f"{line}: {why}")
    return Comparison(min(len(left), len(right)), count, size, tensors, state, aside)


_ITERATOR = "what an iterator keeps of its own; the input is judged by the batches that training drew"


_READS_CLOCK = "the code that sets it reads a clock"


def _why_place_aside(place: str) -> str | None:
    if _ITERATOR_PLACES.fullmatch(place):
        return _ITERATOR
    return _READS_CLOCK if _CLOCK.fullmatch(place) else None


def _why_aside(
    member: int,
    name: str,
    left: Mapping[str, np.ndarray[Any, Any]],
    right: Mapping[str, np.ndarray[Any, Any]],
    set_aside: Callable[[int, str, bytes, bytes], str | None],
) -> str | None:
    if name in ITERATOR_BYTES or name.startswith(_GRAIN):
        return _ITERATOR
    if _CLOCK.fullmatch(name):
        return _READS_CLOCK
    one, other = (side[name].tobytes() if name in side else b"" for side in (left, right))
    return set_aside(member, name, one, other)


def compare_tensors(
    left: Mapping[str, np.ndarray[Any, Any]], right: Mapping[str, np.ndarray[Any, Any]], prefix: str = ""
) -> list[TensorDifference]:
    """Compares tensors by name: type, shape and every byte.

    A NaN therefore equals the same NaN, and 0.0 does not equal -0.0.
    """
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            where = "preempted" if name not in left else "undisturbed"
            found.append(TensorDifference(prefix + name, f"only in the {where} run"))
            continue
        difference = _compare_arrays(prefix + name, left[name], right[name])
        if difference is not None:
            found.append(difference)
    return found


def compare_json(
    left: Any,
    right: Any,
    path: str = "",
    names: tuple[str, str] = ("the undisturbed run", "the preempted run"),
) -> list[str]:
    """Compares JSON values deeply, types included, without the keys in ``VOLATILE_KEYS``; NaN equals NaN."""
    return list(_json_differences(left, right, path, names))


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
    elif type(left) is not type(right) or not _same_scalar(left, right):
        yield f"{path}: {_short(left)} and {_short(right)}"


def _same_scalar(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _compare_arrays(
    name: str, left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]
) -> TensorDifference | None:
    if left.dtype != right.dtype:
        return TensorDifference(name, f"types {left.dtype} and {right.dtype}")
    if left.shape != right.shape:
        return TensorDifference(name, f"shapes {left.shape} and {right.shape}")
    if np.array_equal(_bytes(left), _bytes(right)):
        return None
    size = left.dtype.itemsize
    unequal = (_bytes(left).reshape(-1, size) != _bytes(right).reshape(-1, size)).any(axis=1)
    reason = f"{int(unequal.sum())} of {left.size} values"
    try:
        distance = np.abs(left.astype(np.float64) - right.astype(np.float64))
    except (TypeError, ValueError):
        return TensorDifference(name, reason)
    finite = distance[np.isfinite(distance)]
    return TensorDifference(name, reason, float(finite.max()) if finite.size else None)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
