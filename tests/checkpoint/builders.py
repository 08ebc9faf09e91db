"""Small checkpoints for tests, written through the same functions as real ones."""

from __future__ import annotations

import contextlib
import errno
import os
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.errors import AlreadyExists
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name, incarnation_file, part_file
from keras_preempt.checkpoint.manifest import Manifest, PartRef
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.tidying import Tidying
from keras_preempt.checkpoint.values import Box, Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part


def model(step: int) -> dict[str, Array]:
    """Tensors that depend on the step; the first is large enough to be cut."""
    random = np.random.default_rng(step)
    return {
        "dense/kernel": random.standard_normal((600, 512), dtype=np.float32),
        "dense/bias": random.standard_normal(512, dtype=np.float32),
        "seed": random.integers(0, 2**32, 2, dtype=np.uint32),
        "iterations": np.asarray(step, np.int64),
    }


def local(step: int, member: int) -> dict[str, Array]:
    return {"moving_mean": np.full((3,), step + member / 8, np.float32)}


def state(step: int, member: int) -> dict[str, Any]:
    return {"batch": step, "member": member, "best": float("inf")}


def at(step: int, phase: str = "train", epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "phase": phase, "batch": step, "step": step}


def values_of(tensors: Mapping[str, Array]) -> list[Value]:
    return [Value(name, array.dtype.name, array.shape) for name, array in tensors.items()]


def shares_of(
    tensors: Mapping[str, Array], writers: Sequence[int] = (0,)
) -> dict[int, list[tuple[Box, Array]]]:
    """What each writer writes of tensors that all of them hold."""
    divided = divide(values_of(tensors), writers)
    return {
        member: [(box, box.of(tensors[box.tensor])) for box in boxes] for member, boxes in divided.items()
    }


def write_parts(
    store: Store,
    directory: str,
    step: int,
    *,
    members: tuple[int, ...] = (0, 1),
    writers: tuple[int, ...] = (0, 1),
    position: dict[str, Any] | None = None,
) -> None:
    shares = shares_of(model(step), writers)
    for member in members:
        own = local(step, member), state(step, member), position or at(step)
        write_part(store, directory, member, WorkerShare(shares.get(member, []), *own))


def commit_parts(store: Store, directory: str, step: int, **changed: Any) -> Manifest:
    """Commits; `changed` are fields of `Attempt` and `Patience`, and `now`."""
    known = {field.name for field in fields(Attempt)}
    told: dict[str, Any] = {
        "step": step,
        "name": directory.split("/")[1],
        "position": at(step),
        "kind": "preemption",
        "values": values_of(model(step)),
        "members": 2,
        "writers": (0, 1),
        "reason": "SIGTERM",
        "versions": {"numpy": np.__version__},
        **{name: value for name, value in changed.items() if name in known},
    }
    attempt = Attempt(**told)
    with contextlib.suppress(AlreadyExists):  # as the start of the job has done
        store.create(incarnation_file(attempt.incarnation), b"")
    options = {name: value for name, value in changed.items() if name not in known}
    now = {"now": options.pop("now")} if "now" in options else {}
    return commit(store, attempt, Patience(**{"required": 5.0, **options}), **now)


def save(
    store: Store, step: int, *, round: int = 1, position: dict[str, Any] | None = None, **changed: Any
) -> CheckpointInfo:
    """Saves and commits a checkpoint of two workers; returns what the reader finds of it."""
    incarnation = incarnations.latest(store) or incarnations.claim(store, {})
    directory = attempt_directory(step, attempt_name(incarnation, round))
    position = position or at(step)
    write_parts(store, directory, step, position=position)
    commit_parts(store, directory, step, position=position, **changed)
    return next(info for info in committed(store) if info.directory == directory)


def retain(store: Store, retention: Retention, incarnation: int) -> list[str]:
    """Tidies up as a process that has seen nothing before; returns the folders that it has removed."""
    return list(Tidying(store, retention, incarnation).tidy())


def snapshot(path: Path) -> dict[str, bytes]:
    """All files below a directory with their content."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def new_store(path: Path) -> LocalStore:
    store = LocalStore(path / "run")
    store.prepare()
    return store


@contextlib.contextmanager
def little_memory_taken(most: int) -> Iterator[None]:
    """No more than so many bytes at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    none_here = OSError(errno.EOPNOTSUPP, "no hard links here")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=none_here))


def held(members: int, parts: set[int], created_at: float = 1.0) -> Manifest:
    """The manifest of what one machine holds in memory: these parts of a checkpoint of so many workers."""
    refs = tuple(PartRef(part, part_file(part), 10, part) for part in sorted(parts))
    return Manifest(
        format=1,
        step=7,
        position={"epoch": 0, "phase": "train", "batch": 7, "step": 7},
        incarnation=1,
        attempt="00001-0003",
        kind="memory",
        finished=False,
        reason="",
        members=members,
        writers=tuple(sorted(parts)),
        parts=refs,
        missing=tuple(sorted(set(range(members)) - parts)),
        created_at=created_at,
        versions={},
    )
