"""Starts on a directory that somebody has laid hands on."""

from __future__ import annotations

from typing import Any

from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.training.save.resuming import Start
from keras_preempt.training.start.handshake import Handshake
from keras_preempt.training.start.startup import Startup
from tests.checkpoint.fuzz_targets import Targets

TENSORS = "w00000.mirrored-000.safetensors"
IDENTITY: dict[str, Any] = {
    "format": 1,
    "run_id": "a",
    "model": [{"name": "kernel", "shape": [9, 7], "dtype": "float32"}],
    "optimizer": [],
    "optimizer_class": "Adam",
    "setup": {"workers": 2, "replicas": 2, "global_batch": 8, "batches": 6, "built_from": 1},
    "config": {},
}


class _Start(Startup):
    def identity(self) -> dict[str, Any]:
        return IDENTITY


def start(targets: Targets) -> Start:
    """Begins like a fit does."""
    return _Start(targets.store, Handshake(LocalCoordinator(), 1)).agree()


def assert_passed_over(targets: Targets) -> str:
    """A start goes on from the older checkpoint, and says in one line why not from the newer; returns that."""
    began = start(targets)
    assert began.name == targets.old.directory
    (why,) = began.skipped
    assert targets.new.directory.partition("/")[0] in why
    assert why.isprintable()
    assert len(why) < 2000
    assert targets.outside.read_bytes() == b"nobody may touch this"
    return why
