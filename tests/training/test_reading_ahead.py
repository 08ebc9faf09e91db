"""The newest checkpoint is in the system's memory before anybody reads it; nothing depends on that."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training.reading_ahead import reading_ahead
from tests.cluster.small_fit import fit
from tests.page_cache import forget, share_in_memory

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is in its memory")


def wait_until(condition: Callable[[], bool]) -> bool:
    """Waits up to 20 s; the disk's reading cannot be waited for, only looked for."""
    limit = time.monotonic() + 20
    while not condition() and time.monotonic() < limit:
        time.sleep(0.01)
    return condition()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "keras_preempt-ahead"]


@on_linux
def test_the_system_has_a_file_in_its_memory_that_it_was_told_of(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(np.random.default_rng(1).bytes(8 << 20))
    forget([file])
    LocalStore(tmp_path).read_ahead("file")
    assert wait_until(lambda: share_in_memory(file) == 1.0)


def test_what_is_no_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("nothing", "folder"):
        with pytest.raises(NotFound):
            LocalStore(tmp_path).read_ahead(name)


@on_linux
def test_while_a_model_is_traced_its_checkpoint_comes_into_memory(tmp_path: Path) -> None:
    came: list[bool] = []

    class Traced(keras.Model):
        """Its training step is traced before the workers agree on a checkpoint."""

        def __init__(self, stored: list[Path]) -> None:
            super().__init__(name="traced")
            self.dense = keras.layers.Dense(500_000, name="wide")
            self.stored = stored

        def call(self, inputs: object) -> object:
            return keras.ops.mean(self.dense(inputs), axis=-1, keepdims=True)

        def compute_loss(self, *arguments: object, **named: object) -> object:
            if self.stored and not came:
                came.append(wait_until(lambda: min(map(share_in_memory, self.stored)) > 0.9))
            return super().compute_loss(*arguments, **named)

    def model(stored: list[Path]) -> keras.Model:
        keras.utils.set_random_seed(1)
        made = Traced(stored)
        made.compile(keras.optimizers.Adam(name="adam"), "mse")
        return made

    first = fit(tmp_path, model=model([]), strike=(0, 2))
    stored = [path for path in tmp_path.rglob("*.safetensors") if path.stat().st_size > 1 << 20]
    assert len(stored) > 1
    forget(stored)
    rest = fit(tmp_path, model=model(stored))
    assert came == [True]
    assert first + rest == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert threads() == []


@pytest.mark.parametrize("error", [NotFound("run", "x"), StoreUnavailable("no connection")])
def test_what_fails_ahead_is_met_by_who_reads(tmp_path: Path, error: Exception) -> None:
    asked = threading.Event()

    class Broken(LocalStore):
        def children(self, prefix: str) -> list[str]:
            asked.set()
            raise error

    with reading_ahead(Broken(tmp_path)):
        assert asked.wait(20)
        assert wait_until(lambda: threads() == [])


def test_the_thread_ends_with_the_block_whatever_ends_that(tmp_path: Path) -> None:
    going, go_on = threading.Event(), threading.Event()

    class Slow(LocalStore):
        def children(self, prefix: str) -> list[str]:
            going.set()
            assert go_on.wait(20)
            return []

    def fail() -> None:
        with reading_ahead(Slow(tmp_path)):
            assert going.wait(20)
            threading.Timer(0.1, go_on.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert threads() == []


def test_a_bucket_is_not_asked(tmp_path: Path) -> None:
    class Bucket(LocalStore):
        shared_by_network = True

        def children(self, prefix: str) -> list[str]:
            raise AssertionError("asked")

    with reading_ahead(Bucket(tmp_path)):
        assert threads() == []
