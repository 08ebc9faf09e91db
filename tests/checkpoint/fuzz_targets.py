"""Two small checkpoints with everything in them that a file can hold, and how to seal what was changed in one."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import google_crc32c

from keras_preempt.checkpoint import division, documents
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.reader import Loaded, load
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.sharded_builders import attempt_of, held_by, save, sharded

Change = Callable[[dict[str, Any]], object]

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


CUTS = {"experts": (1, 2, 2), "mask": (2,)}
WANTED = held_by(1, sharded(NEW, {"experts": (3, 1, 1), "kernel": (2, 2)}, MEMBERS))
"""What a worker in another mesh needs: parts of a tensor that is stored in pieces, and of one stored in runs."""


def make(root: Path) -> Targets:
    """Saves both checkpoints below `root`, in pieces and several files."""
    store = LocalStore(root / "run")
    store.prepare()
    outside = root / "outside"
    outside.write_bytes(b"nobody may touch this")
    with contextlib.ExitStack() as small:
        small.enter_context(mock.patch.object(division, "SMALLEST_CUT", 64))
        small.enter_context(mock.patch.object(store, "file_size", return_value=150))
        for step in (OLD, NEW):
            save(store, attempt_of(step, sharded(step, CUTS, MEMBERS), MEMBERS))
    new, old = committed(store)
    originals = {(at.directory, n): load(store, at, n, MEMBERS) for at in (old, new) for n in range(MEMBERS)}
    return Targets(store, outside, old, new, originals)


def seal_document(body: dict[str, Any]) -> bytes:
    """Returns a document with a right sum, also where `documents.encode_document` would refuse to write it."""
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


def edit_part(folder: Path, name: str, change: Change) -> None:
    """Rewrites a part list with right sums, as somebody with a text editor and bad intentions could."""
    body = fields_of(folder / name)
    change(body)
    (folder / name).write_bytes(seal_document(body))
    list_part(folder, name)


def list_file(folder: Path, name: str) -> None:
    """Lists a file of tensors as it is now, in its part list and the manifest."""
    data = (folder / name).read_bytes()

    def change(part: dict[str, Any]) -> None:
        for entry in part["files"]:
            if entry["name"] == name:
                entry.update(size=len(data), crc32c=google_crc32c.value(data))

    edit_part(folder, part_file(int(name[1:6])), change)


def list_part(folder: Path, name: str) -> None:
    """Lists a part list as it is now, in the manifest."""
    data = (folder / name).read_bytes()
    body = fields_of(folder / MANIFEST)
    for ref in body["parts"]:
        if ref["name"] == name:
            ref.update(size=len(data), crc32c=google_crc32c.value(data))
    (folder / MANIFEST).write_bytes(seal_document(body))


assert documents.decode_document(seal_text('{"format":1}'), "file") == {"format": 1}, (
    "sealing is what the package does"
)
