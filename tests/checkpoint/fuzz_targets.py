"""Two small checkpoints with everything in them that a file can hold, and how to seal what was changed in one."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import google_crc32c
import numpy as np

from keras_preempt.checkpoint import documents, incarnations, partition
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.boxes import Box, Piece, ShardedSpec
from keras_preempt.checkpoint.commit import commit
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, attempt_name, part_file
from keras_preempt.checkpoint.partition import TensorSpec
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded, committed, load
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import write_part

MEMBERS = 2
OLD, NEW = 3, 5  # steps


class Targets(NamedTuple):
    """A run's directory beside a file that nobody may touch, and what its checkpoints hold."""

    store: LocalStore
    outside: Path
    old: CheckpointInfo
    new: CheckpointInfo
    originals: dict[tuple[str, int], Loaded]  # by the attempt's folder and the worker's number

    @property
    def folder(self) -> Path:
        return self.store.path / self.new.directory


def copied(targets: Targets, root: Path) -> Targets:
    """Returns the same below another folder, which is quicker than to save it there."""
    shutil.copytree(targets.store.path.parent, root, dirs_exist_ok=True)
    return targets._replace(store=LocalStore(root / "run"), outside=root / "outside")


def tensors(step: int) -> dict[str, Array]:
    random = np.random.default_rng(step)
    return {
        "kernel": random.standard_normal((9, 7), dtype=np.float32),
        "twin": random.standard_normal((7, 9), dtype=np.float32),
        "mask": random.integers(0, 2, 11).astype(np.bool_),
        "empty": np.empty((0, 3), np.float64),
        "seed": random.integers(0, 2**32, 2, dtype=np.uint32),
        "iterations": np.asarray(step, np.int64),
    }


def sharded_tensors(step: int) -> dict[str, Array]:
    random = np.random.default_rng(step)
    return {
        "experts": random.standard_normal((4, 6), dtype=np.float32),
        "gates": random.integers(0, 2, 12).astype(np.bool_),
    }


SHARDED = [
    ShardedSpec(
        "experts",
        "float32",
        (4, 6),
        tuple(
            Piece((row, column), (row + 2, column + 3), (row // 2,)) for row in (0, 2) for column in (0, 3)
        ),
    ),
    ShardedSpec("gates", "bool", (12,), (Piece((0,), (5,), (0, 1)), Piece((5,), (12,), (0, 1)))),
]
WANTED = {
    "experts": [
        Box("experts", "float32", (4, 6), (0, 0), (4, 2)),
        Box("experts", "float32", (4, 6), (3, 2), (4, 6)),
    ],
    "kernel": [Box("kernel", "float32", (9, 7), (2, 1), (5, 7))],
}
"""What a worker in another mesh needs: parts of a tensor that is stored in pieces, and of one stored in runs."""


def make(root: Path) -> Targets:
    """Saves both checkpoints below `root`, in pieces and several files."""
    store = LocalStore(root / "run")
    store.prepare()
    outside = root / "outside"
    outside.write_bytes(b"nobody may touch this")
    incarnations.claim(store, {})
    with contextlib.ExitStack() as small:
        small.enter_context(mock.patch.object(partition, "SMALLEST_CUT", 64))
        small.enter_context(mock.patch.object(store, "file_size", return_value=150))
        infos = [_save(store, step, round) for round, step in enumerate((OLD, NEW))]
    originals = {(info.directory, n): load(store, info, n, MEMBERS) for info in infos for n in range(MEMBERS)}
    return Targets(store, outside, *infos, originals)


def _save(store: LocalStore, step: int, round: int) -> CheckpointInfo:
    directory = attempt_directory(step, attempt_name(1, round))
    held = tensors(step)
    specs = [TensorSpec(name, array.dtype.name, array.shape) for name, array in held.items()]
    position = {"epoch": 0, "phase": "train", "batch": step, "step": step}
    attempt = Attempt(
        step=step,
        name=attempt_name(1, round),
        position=position,
        kind="preemption",
        members=MEMBERS,
        writers=tuple(range(MEMBERS)),
        reason="SIGTERM",
        versions={"numpy": "2"},
        sharded=SHARDED,
    )
    divided = sharded_tensors(step)
    for member, share in enumerate(partition.partition(specs, MEMBERS)):
        local = {"mean@0": np.full(5, step + member, np.float64)}
        state = {"batch": step, "member": member, "best": float("inf"), "nested": [[1, {"$float": 2}], "é"]}
        mirrored = [(piece, held[piece.tensor]) for piece in share]
        boxes = [(box, divided[box.tensor][box.index]) for box in attempt.boxes[member]]
        write_part(store, directory, member, mirrored, local, state, position, sharded=boxes)
    commit(store, attempt, timeout=5.0, optional_timeout=0.0)
    return next(info for info in committed(store) if info.directory == directory)


def seal_document(body: dict[str, Any]) -> bytes:
    """Returns a document with a right sum, also where `documents.encode` would refuse to write it."""
    return seal_text(json.dumps(body, separators=(",", ":")))


def seal_text(text: str) -> bytes:
    """Returns a text that ends with '}' as a document with a right sum."""
    total = google_crc32c.value(text.encode())
    return f'{text[:-1]},"crc32c":{total}}}\n'.encode()


def fields_of(path: Path) -> dict[str, Any]:
    """Returns the fields of a stored document as they stand there, without its sum."""
    fields: dict[str, Any] = json.loads(path.read_bytes())
    del fields["crc32c"]
    return fields


def list_file(folder: Path, name: str) -> None:
    """Lists a file of tensors as it is now, in its part list and the manifest."""
    data = (folder / name).read_bytes()
    part = folder / part_file(int(name[1:6]))
    body = fields_of(part)
    for entry in body["files"]:
        if entry["name"] == name:
            entry.update(size=len(data), crc32c=google_crc32c.value(data))
    part.write_bytes(seal_document(body))
    list_part(folder, part.name)


def list_part(folder: Path, name: str) -> None:
    """Lists a part list as it is now, in the manifest."""
    data = (folder / name).read_bytes()
    body = fields_of(folder / MANIFEST)
    for ref in body["parts"]:
        if ref["name"] == name:
            ref.update(size=len(data), crc32c=google_crc32c.value(data))
    (folder / MANIFEST).write_bytes(seal_document(body))


assert documents.decode(seal_text('{"format":1}'), "file") == {"format": 1}, (
    "sealing is what the package does"
)
