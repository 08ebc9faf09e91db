"""Checkpoints of tensors that are divided among workers, as meshes of devices divide them."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.layout import attempt_name
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, Store, uncounted
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Piece, Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from tests.checkpoint.builders import values_of

Cuts = Mapping[str, tuple[int, ...]]
"""Into how many pieces each dimension of a tensor is cut, by its name; a tensor that is not named is mirrored."""

BY_COLUMNS: Cuts = {"kernel": (1, 4), "experts": (1, 1, 2), "mask": (2,)}
BY_ROWS: Cuts = {"kernel": (2, 1), "experts": (3, 1, 1), "scale": ()}
BOTH_WAYS: Cuts = {"kernel": (3, 2), "experts": (3, 2, 2), "mask": (5,), "nothing": (1, 2)}
MIRRORED: Cuts = {}
ALONE: Cuts = {"kernel": (1, 2)}
"""Each of two workers alone holds a half."""


class Counting(LocalStore):
    """Notes the files that are written and opened, in their order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opened: Counter[str] = Counter()
        self.written: list[str] = []
        self._lock = threading.Lock()

    def open(self, name: str, moved: Moved = uncounted) -> Any:
        with self._lock:
            self.opened[name.rpartition("/")[2]] += 1
        return super().open(name, moved)

    def writer(self, name: str, moved: Moved = uncounted) -> Any:
        self.written.append(name.rpartition("/")[2])
        return super().writer(name, moved)


def tensors(step: int) -> dict[str, Array]:
    random = np.random.default_rng(step)
    return {
        "kernel": random.standard_normal((7, 12), dtype=np.float32),
        "experts": random.integers(0, 255, (3, 4, 6)).astype(np.uint8),
        "mask": random.integers(0, 2, 11).astype(np.bool_),
        "scale": np.asarray(step / 3, np.float64),
        "nothing": np.empty((0, 4), np.float32),
        "iterations": np.asarray(step, np.int64),
    }


def sharded(step: int, cuts: Cuts, members: int, copies: int = 1) -> list[Value]:
    """Describes the tensors of `cuts`; the pieces go round the workers, and `copies` neighbours hold each."""
    specs = []
    for name, array in tensors(step).items():
        if name not in cuts:
            continue
        cut = zip(array.shape, cuts[name], strict=True)
        borders = [[size * n // parts for n in range(parts + 1)] for size, parts in cut]
        runs = itertools.product(*map(itertools.pairwise, borders))
        pieces = tuple(
            Piece(
                tuple(start for start, _ in run),
                tuple(stop for _, stop in run),
                tuple(sorted({(number + copy) % members for copy in range(copies)})),
            )
            for number, run in enumerate(runs)
        )
        specs.append(Value(name, array.dtype.name, array.shape, pieces))
    return specs


def attempt_of(step: int, specs: Sequence[Value], members: int, **changed: Any) -> Attempt:
    divided = {spec.name for spec in specs}
    mirrored = values_of({name: array for name, array in tensors(step).items() if name not in divided})
    position = {"epoch": 0, "phase": "train", "batch": step, "step": step}
    told = {"writers": tuple(range(members)), "values": [*mirrored, *specs], **changed}
    return Attempt(
        step=step,
        name=attempt_name(1, step),
        position=position,
        kind="preemption",
        members=members,
        **told,
    )


def write(store: Store, attempt: Attempt, absent: Collection[int] = ()) -> None:
    """Writes the part of each worker, but for those who are gone."""
    held = tensors(attempt.step)
    for member in range(attempt.members):
        if member not in absent:
            share = WorkerShare(
                [(box, box.of(held[box.tensor])) for box in attempt.boxes.get(member, ())],
                {"own@0": np.full(2, attempt.step + member / 8, np.float32)},
                {"member": member, "best": float("inf"), "nested": [[1, {"$float": 2}], "é"]},
                attempt.position,
            )
            write_part(store, attempt.directory, member, share)


def save(store: Store, attempt: Attempt, absent: Collection[int] = (), **options: Any) -> Manifest:
    """Writes and commits; `options` are those of `commit`."""
    if not incarnations.latest(store):
        incarnations.claim(store, {})
    write(store, attempt, absent)
    return commit(store, attempt, Patience(**{"required": 5.0, **options}))


def held_by(member: int, specs: Sequence[Value]) -> dict[str, list[Box]]:
    """What a worker needs of a checkpoint."""
    return {
        spec.name: [spec.box(p.start, p.stop) for p in spec.pieces or () if member in p.holders]
        for spec in specs
    }
