"""The newest checkpoint is fetched while the model is traced, before anybody reads it."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

import keras
import pytest

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage import bucket
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.testing import FakeGcs
from keras_preempt.training.start.reading_ahead import reading_ahead
from tests import fits
from tests.cluster.small_fit import await_, fit
from tests.page_cache import forget, share_in_memory


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "keras_preempt-ahead"]


def test_what_is_no_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("nothing", "folder"):
        with pytest.raises(NotFound):
            LocalStore(tmp_path).read_ahead(name)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is in its memory")
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
                await_(lambda: min(map(share_in_memory, self.stored)) > 0.9)
                came.append(True)
            return super().compute_loss(*arguments, **named)

    def model(stored: list[Path]) -> keras.Model:
        keras.utils.set_random_seed(1)
        made = Traced(stored)
        made.compile(keras.optimizers.Adam(name="adam"), "mse", jit_compile=False)
        return made

    first = fit(tmp_path, model=model([]), strike=(0, 2))
    stored = [path for path in tmp_path.rglob("*.safetensors") if path.stat().st_size > 1 << 20]
    assert len(stored) > 1
    forget(stored)
    rest = fit(tmp_path, model=model(stored))
    assert came == [True]
    assert first + rest == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert threads() == []


def asking(path: Path, answer: Callable[[], list[str]]) -> LocalStore:
    """A directory that is asked through a function what it contains."""
    store = LocalStore(path)
    vars(store)["children"] = lambda prefix: answer()
    return store


@pytest.mark.parametrize("error", [NotFound("run", "x"), StoreUnavailable("no connection")])
def test_what_fails_ahead_is_met_by_who_reads(tmp_path: Path, error: Exception) -> None:
    broken = mock.Mock(side_effect=error)
    with reading_ahead(asking(tmp_path, broken)):
        await_(lambda: broken.called)
        await_(lambda: threads() == [])


def test_the_thread_ends_with_the_block_whatever_ends_that(tmp_path: Path) -> None:
    going, go_on = threading.Event(), threading.Event()

    def slow() -> list[str]:
        going.set()
        assert go_on.wait(20)
        return []

    def fail() -> None:
        with reading_ahead(asking(tmp_path, slow)):
            assert going.wait(20)
            threading.Timer(0.1, go_on.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert threads() == []


def test_a_bucket_is_not_asked_by_one_of_several_workers(tmp_path: Path) -> None:
    bucket = asking(tmp_path, fits.fail)
    vars(bucket)["shared_by_network"] = True
    with reading_ahead(bucket, members=2):
        assert threads() == []


def test_a_restart_from_a_bucket_fetches_each_file_once_while_the_step_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_ALONE", 0)  # Also small files.
    ahead: list[str] = []
    fetch = BucketStore.read_ahead

    def noting(store: BucketStore, name: str) -> None:
        ahead.append(name)
        fetch(store, name)

    monkeypatch.setattr(BucketStore, "read_ahead", noting)
    with FakeGcs(buckets=("bucket",)) as fake:
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        first = fit("gs://bucket/run", strike=(0, 2))
        fake.forget_requests()
        rest = fit("gs://bucket/run")
        read = Counter(
            name
            for name in ahead
            for request in fake.requests
            if request.method == "GET" and "alt=media" in request.path and name in unquote(request.path)
        )
    assert first + rest == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    tensors = [name for name in ahead if name.endswith(".safetensors")]
    assert tensors
    assert {read[name] for name in tensors} == {1}
    assert threads() == []
