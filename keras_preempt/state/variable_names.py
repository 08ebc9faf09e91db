"""Matches the variables of two models of one program that Keras has named differently. Pure functions.

Keras numbers the layers of a class throughout a process: a model that is made twice has `dense` first and then
`dense_1`. And a path below a model's own name, such as `sequential/dense/kernel`, lacks that name when Keras has made
the model from its description.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

_NUMBERED = re.compile(r"(.*?)(?:_([0-9]+))?\Z", re.DOTALL)


def unique(name: str, taken: Container[str]) -> str:
    """Returns a name that tells a variable from those of the same path: "dense/kernel#2" after "dense/kernel"."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found


def named_alike(names: Sequence[str], saved: Sequence[str]) -> dict[str, str] | None:
    """Returns the saved name that belongs to each name, if there is exactly one way to see it; else None.

    Both are paths of variables, such as "sequential_1/dense_3/kernel".
    """
    if set(names) == set(saved):
        return {name: name for name in names}
    for here in (names, _below(names)):
        for there in (saved, _below(saved)):
            found = _renumbered(here, there)
            if found is not None:
                own, full = dict(zip(here, names, strict=True)), dict(zip(there, saved, strict=True))
                return {own[name]: full[other] for name, other in found.items()}
    return _shortened(names, saved)


def _below(names: Sequence[str]) -> Sequence[str]:
    """The paths below the model's own name, if that begins all of them."""
    first = {name.partition("/")[0] for name in names}
    deep = all(name.count("/") >= 2 for name in names)
    return [name.partition("/")[2] for name in names] if len(first) == 1 and deep else names


def differ_in_layer(name: str, saved: str) -> bool:
    """Whether two paths end with other layers or variables, and not only lie in other models."""
    ends = [tuple(re.sub(r"#[0-9]+\Z", "", path).split("/")[-2:]) for path in (name, saved)]
    # A variable of the model itself may have one component.
    return ends[0][-1] != ends[1][-1] or (len(ends[0]) == len(ends[1]) and ends[0] != ends[1])


def _renumbered(names: Sequence[str], saved: Sequence[str]) -> dict[str, str] | None:
    """Matches names that differ only by their numbers, by one distance for each class."""
    first: list[dict[str, int]] = [{}, {}]
    for paths, least in zip((names, saved), first, strict=True):
        for path in paths:
            for stem, number in map(_numbered, path.split("/")):
                least[stem] = min(number, least.get(stem, number))
    if first[0].keys() != first[1].keys():
        return None
    moved = {}
    for name in names:
        parts = []
        for component in name.split("/"):
            stem, number = _numbered(component)
            distance = first[1][stem] - first[0][stem]
            there = number + distance
            parts.append(component if distance == 0 else stem if there == 0 else f"{stem}_{there}")
        moved[name] = "/".join(parts)
    return moved if sorted(moved.values()) == sorted(saved) else None


def _numbered(component: str) -> tuple[str, int]:
    match = _NUMBERED.match(component)
    assert match is not None
    return match[1], int(match[2] or 0)


def _shortened(names: Sequence[str], saved: Sequence[str]) -> dict[str, str] | None:
    """Matches names of which one is the end of the other, if there is exactly one way."""
    if len(names) != len(saved):
        return None
    found: dict[str, str] = {}
    for shorter, longer in ((names, saved), (saved, names)):
        ends: dict[str, list[str]] = {}
        for path in longer:
            parts = path.split("/")
            for start in range(len(parts) - 1):  # At least a layer and a variable.
                ends.setdefault("/".join(parts[start:]), []).append(path)
        pairs = {path: ends.get(path, []) for path in shorter}
        if all(len(others) == 1 for others in pairs.values()):
            found = {path: others[0] for path, others in pairs.items()}
            if len(set(found.values())) == len(found):
                return found if shorter is names else {other: path for path, other in found.items()}
    return None
