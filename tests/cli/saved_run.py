"""Directories of runs for the commands that look at them, written through the same functions as real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_preempt.checkpoint import documents, incarnations
from keras_preempt.checkpoint.layout import RUN, attempt_directory, attempt_name
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.cli.main import main
from tests.checkpoint.builders import commit_parts, shares_of, values_of

#: The fixture `run`.
Run = Callable[..., tuple[str, str]]

IDENTITY: dict[str, Any] = {
    "format": 1,
    "run_id": "c0ffee",
    "model": [
        {"name": "model/net/dense/kernel", "shape": [4, 3], "dtype": "float32"},
        {"name": "model/net/norm/mean", "shape": [3], "dtype": "float32"},
        {"name": "model/net/words", "shape": [2], "dtype": "string"},
        {"name": "model/seed_generator/seed_generator_state", "shape": [2], "dtype": "int64"},
        {"name": "metrics/loss/total", "shape": [], "dtype": "float32"},
    ],
    "optimizer": [{"name": "optimizer/adam/iteration", "shape": [], "dtype": "int64"}],
    "optimizer_class": "Adam",
    "setup": {"workers": 2, "replicas": 2, "global_batch": 8, "batches": 6, "built_from": 1},
    "config": {},
}


def begin(place: str | os.PathLike[str], **settings: Any) -> Store:
    """Begins a run, as a start of a job does."""
    store = open_store(place)
    store.prepare()
    if RUN not in store.children(""):
        store.create(RUN, documents.encode_document(IDENTITY))
    incarnations.claim(store, {"members": 2, **settings})
    return store


def kernel(step: int) -> Array:
    return np.random.default_rng(step).standard_normal((4, 3), dtype=np.float32)


def mean(step: int, member: int) -> Array:
    """What differs between the replicas."""
    return np.full(3, step + member / 2, np.float32)


def save(
    store: Store,
    step: int,
    *,
    round: int = 0,
    position: Mapping[str, Any] | None = None,
    writers: Sequence[int] = (0, 1),
    committed: bool = True,
    **changed: Any,
) -> str:
    """Saves a checkpoint of two workers under the newest claim; returns its folder."""
    incarnation = incarnations.latest(store)
    attempt = attempt_name(incarnation, round)
    directory = attempt_directory(step, attempt)
    where = dict(position or {"epoch": step // 6, "phase": "train", "batch": step % 6, "step": step})
    mirrored = {
        "model/net/dense/kernel": kernel(step),
        "optimizer/adam/iteration": np.asarray(step, np.int64),
    }
    shares = shares_of(mirrored, writers)
    for member in (0, 1):
        local = {
            "model/net/norm/mean@0": mean(step, member),
            "model/net/words@0": np.frombuffer(b"bytes of strings", np.uint8),
            "model/seed_generator/seed_generator_state@0": np.array([step, member], np.int64),
            "metrics/loss/total@0": np.float32(step).reshape(()),
        }
        share = WorkerShare(shares.get(member, []), local, {"batch": step}, where)
        write_part(store, directory, member, share)
    if committed:
        told = {"kind": "periodic", "reason": "called by periodic", **changed}
        told = {"values": values_of(mirrored), "writers": tuple(writers), "position": where, **told}
        commit_parts(store, directory, step, **told)
    return directory


def events(path: Path, incarnation: int, member: int, *told: Mapping[str, Any]) -> None:
    """Writes the log of a worker."""
    folder = path / "events"
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in told)
    (folder / f"{incarnation:05d}.w{member:05d}.jsonl").write_text(lines)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    """Runs the command line in this process; returns its exit code, output and errors."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
