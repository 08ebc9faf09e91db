"""The committed checkpoints of a directory, found while other jobs may save and remove there. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    NotFound,
    StoreUnavailable,
    UnsafeName,
    UnsupportedFormat,
)
from keras_preempt.checkpoint.layout import MANIFEST, is_attempt, parse_attempt, parse_step
from keras_preempt.checkpoint.manifest import Manifest, read_manifest
from keras_preempt.checkpoint.storage.store import Store

_LOOKS = 10  # at a directory in which others work; each vain one means that they saved and removed meanwhile
_PHASES = ("epoch", "train", "validation", "end")  # in the order in which an epoch passes them


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        step: Training steps done.
        attempt: Name of the attempt that saved it; empty if the folder of the step cannot be looked into.
        directory: The attempt's folder in the store.
        manifest: What it says about itself; None if that cannot be read.
        error: Why it cannot be read; None if it can.
        told: Its part lists that other workers have read, by member; see `part_lists.PartLists`.
    """

    step: int
    attempt: str
    directory: str
    manifest: Manifest | None
    error: CheckpointError | None = None
    told: Mapping[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    def readable(self) -> Manifest:
        """Returns what it says about itself, or raises why that cannot be read."""
        if self.manifest is None:
            raise self.error or CorruptCheckpoint(f"{self.directory}/{MANIFEST}", "no readable manifest")
        return self.manifest


def newest_first(store: Store) -> Iterator[CheckpointInfo]:
    """Finds the committed checkpoints, the one that is furthest in the training first.

    The order is by step, then by position (one step may be saved before, in and after a validation), then by
    attempt, the latest first. One whose manifest cannot be read comes before the others of its step. What is not asked
    for is not read.
    """
    seen: list[tuple[str, str]] | None = None
    for _ in range(_LOOKS):
        steps = {step: folder for folder in store.children("") if (step := parse_step(folder)) is not None}
        any_found, without = False, []
        for step in sorted(steps, reverse=True):
            found, without_manifest = _look(store, step, steps[step])
            yield from sorted(found, key=order_of, reverse=True)
            any_found = any_found or bool(found)
            without += without_manifest
        # A listing takes time. While another process saves and removes, a checkpoint that was seen may be gone, and
        # its successor not seen yet. That must not make a run begin from nothing.
        if any_found or not without or without == seen:
            return
        seen = without
    raise StoreUnavailable(
        f"Expected to list the checkpoints of {store.url}. Received: other ones every time, {_LOOKS} times. Another "
        "job saves and removes them meanwhile; stop it."
    )


def committed(store: Store) -> list[CheckpointInfo]:
    """Returns what `newest_first` finds, which takes several requests for each checkpoint."""
    return list(newest_first(store))


def find(store: Store, directory: str) -> CheckpointInfo | None:
    """Returns the checkpoint in the folder of an attempt, such as "step-00000070/00001-0000"; None if there is none."""
    folder, _, attempt = directory.partition("/")
    step = parse_step(folder)
    if step is None or not is_attempt(attempt):
        return None
    try:
        manifest = read_manifest(store, directory)
    except NotFound:
        return None
    except (CorruptCheckpoint, UnsupportedFormat, UnsafeName) as error:
        return CheckpointInfo(step, attempt, directory, None, error)
    if (manifest.step, manifest.attempt) != (step, attempt):
        why = f"the manifest of step {manifest.step}, attempt {manifest.attempt}"
        corrupt = CorruptCheckpoint(f"{directory}/{MANIFEST}", why)
        return CheckpointInfo(step, attempt, directory, None, corrupt)
    return CheckpointInfo(step, attempt, directory, manifest)


def manifests_in(store: Store, folders: Iterable[str]) -> Iterator[tuple[str, Manifest]]:
    """Looks for readable manifests in those of `folders` that are of steps; yields each after its folder."""
    for folder in folders:
        for attempt in store.children(folder) if parse_step(folder) is not None else ():
            info = find(store, f"{folder}/{attempt}")
            if info is not None and info.manifest is not None:
                yield info.directory, info.manifest


def is_removed(store: Store, info: CheckpointInfo) -> bool:
    """Whether a checkpoint was removed since it was found: its manifest goes first."""
    try:
        store.stat(f"{info.directory}/{MANIFEST}")
    except NotFound:
        return True
    except ValueError:  # an unsafe name, which is there
        pass
    return False


def _look(store: Store, step: int, folder: str) -> tuple[list[CheckpointInfo], list[tuple[str, str]]]:
    """Returns the checkpoints of a step, and its folders of attempts that hold none (any more, or yet)."""
    try:
        attempts = [name for name in store.children(folder) if is_attempt(name)]
    except UnsafeName as error:  # a link that leads out of the directory
        return [CheckpointInfo(step, "", folder, None, error)], []
    infos = {attempt: find(store, f"{folder}/{attempt}") for attempt in attempts}
    found = [info for info in infos.values() if info is not None]
    return found, [(folder, attempt) for attempt in attempts or [""] if infos.get(attempt) is None]


def order_of(info: CheckpointInfo) -> tuple[int, bool, bool, int, int, int, tuple[int, int]]:
    """Sorts checkpoints: a larger value is further in the training; the last element is the attempt."""
    position = {} if info.manifest is None else info.manifest.position
    phase = position.get("phase")
    rank = _PHASES.index(phase) if phase in _PHASES else -1
    epoch, batch = (n if isinstance(n := position.get(name), int) else -1 for name in ("epoch", "batch"))
    attempt = parse_attempt(info.attempt) if info.attempt else (0, 0)
    return info.step, info.manifest is None, phase == "end", epoch, rank, batch, attempt
