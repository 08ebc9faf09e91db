"""The checkpoints that the workers of a start hold in the memory of their machines, together."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.finding import CheckpointInfo, order_of
from keras_preempt.checkpoint.layout import MANIFEST, part_file, tensor_file
from keras_preempt.checkpoint.machine_memory import MachineMemory, directory_of, put_together
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.process.words import numbered

logger = logging.getLogger("keras_preempt")

HELD = "in_memory"
"""The fact that a worker tells worker 0: the manifests of what its machine holds."""


@dataclass(frozen=True)
class InMemory(CheckpointInfo):
    """A checkpoint of which every part is in the memory of some machine.

    Attributes:
        givers: By which worker each part is given to the others.
        moved: The parts whose own values other workers need as well.
        stored: The newest checkpoint in the directory, "" if there is none.
    """

    givers: Mapping[int, int] = field(default_factory=dict)
    moved: tuple[int, ...] = ()
    stored: str = ""

    def continues(self, stored: CheckpointInfo) -> bool:
        """Whether it is further than a checkpoint in the directory, and not of an earlier start than that."""
        *here, attempt = order_of(self)
        *there, other = order_of(stored)
        return here > there and attempt[0] >= other[0]

    def to_json(self) -> dict[str, Any]:
        assert self.manifest is not None
        return {
            "manifest": self.manifest.to_json().decode(),
            "givers": [self.givers[part] for part in sorted(self.givers)],
            "moved": self.moved,
            "stored": self.stored,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InMemory:
        manifest = _manifest(value["manifest"])
        return _info(manifest, dict(enumerate(value["givers"])), tuple(value["moved"]), value["stored"])


def _info(
    manifest: Manifest, givers: Mapping[int, int], moved: tuple[int, ...], stored: str = ""
) -> InMemory:
    return InMemory(
        manifest.step,
        manifest.attempt,
        directory_of(manifest),
        manifest,
        givers=givers,
        moved=moved,
        stored=stored,
    )


def _manifest(text: str) -> Manifest:
    data = text.encode()
    return Manifest.from_document(
        documents.decode_document(data, MANIFEST, documents.SHARDED_FORMAT), MANIFEST
    )


def checkpoints(heard: Mapping[int, Mapping[str, Any]]) -> list[InMemory]:
    """Returns what all workers hold together, the furthest first, given what each has told.

    A checkpoint of which some part is lost is named in the log.
    """
    held: dict[str, list[tuple[int, Manifest]]] = {}
    for worker, facts in sorted(heard.items()):
        for text in facts.get(HELD, ()):
            with contextlib.suppress(CheckpointError):
                manifest = _manifest(text)
                same = json.dumps(
                    [directory_of(manifest), manifest.members, manifest.position], sort_keys=True
                )
                held.setdefault(same, []).append((worker, manifest))
    found, lost = [], []
    for each in held.values():
        if (whole := put_together(each)) is None:
            lost.append(each)
            continue
        manifest, givers = whole
        here = {(worker, ref.member) for worker, of in each for ref in of.parts}
        resized = manifest.members != len(heard)
        moved = [part for part in range(manifest.members) if resized or (part, part) not in here]
        found.append(_info(manifest, givers, tuple(moved)))
    found.sort(key=order_of, reverse=True)
    for each in lost:
        first = each[0][1]
        there = {ref.member for _, manifest in each for ref in manifest.parts}
        gone = [part for part in range(first.members) if part not in there]
        if not found or first.step > found[0].step:
            logger.warning(
                "The checkpoint in memory of step %d is not used: the part of %s was lost with its machines.",
                first.step,
                numbered("worker", gone),
            )
    return found


def given_by(memory: MachineMemory, info: InMemory, worker: int) -> bytes:
    """Returns the small files of a checkpoint in memory that a worker gives to the others, as JSON.

    Raises `CheckpointError` if this machine does not have them any more.
    """
    given = {}
    for part in sorted(part for part, giver in info.givers.items() if giver == worker):
        names = [part_file(part), *([tensor_file(part, "local")] if part in info.moved else [])]
        there = memory.store.children(info.directory)
        for name in names:
            if name in there or name == names[0]:
                data = memory.store.read(f"{info.directory}/{name}", limit=documents.LARGEST)
                given[name] = base64.b64encode(data).decode()
    return json.dumps(given).encode()


def take(memory: MachineMemory, info: InMemory, given: bytes) -> None:
    """Keeps what another worker has given. Raises `CorruptCheckpoint` if it is nothing that workers give."""
    try:
        files = json.loads(given)
        for name, text in files.items():
            if "/" in name:
                raise ValueError(name)
            memory.put(info.directory, name, base64.b64decode(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptCheckpoint(info.directory, f"not what a worker gives ({error})") from error
