"""One call of the system that fails once, as a disk or a file server may have it, costs no save."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import verify
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.training.save import waiting
from tests.cluster.small_fit import STEPS, fit, make_model

CALLS = ("open", "write", "fsync", "link", "mkdir", "scandir", "fstat", "unlink", "close")


@pytest.fixture(scope="module")
def compiled() -> keras.Model:
    return make_model()


class Failing:
    """Fails a call of `os` once, the n-th time that it is about a checkpoint."""

    def __init__(self, name: str, number: int) -> None:
        self._real = getattr(os, name)
        self._left = number
        self.failed = False

    def __call__(self, *given: Any, **options: Any) -> Any:
        if "step-" in self._path(given[0]):
            self._left -= 1
            if self._left == 0:
                self.failed = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._real(*given, **options)

    def _path(self, target: object) -> str:
        return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_once_in_the_save_after_a_notice_costs_nothing(
    call: str, number: int, tmp_path: Path, compiled: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.optimizer.iterations.assign(0)
    failing = Failing(call, number)
    monkeypatch.setattr(os, call, failing)
    fit(tmp_path, model=compiled, strike=(0, 2))
    monkeypatch.undo()
    store = LocalStore(tmp_path)
    (info,) = committed(store)
    verify(store, info)
    assert len(fit(tmp_path, model=compiled)) == 2 * STEPS - info.step
    if number == 1 and call != "mkdir":
        assert failing.failed


def test_a_call_that_goes_on_failing_is_told_after_a_few_tries(
    tmp_path: Path, compiled: keras.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled.optimizer.iterations.assign(0)
    monkeypatch.setattr(waiting, "PAUSES", (0.01, 0.01))

    real = os.link

    def failing(source: Any, target: Any, **options: Any) -> None:
        if "step-" in str(target):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target, **options)

    monkeypatch.setattr(os, "link", failing)
    fit(tmp_path, model=compiled, strike=(0, 2))
    assert sum("NOT saved: " in text for text in caplog.messages) == 1
    assert sum("is tried again" in text for text in caplog.messages) == 2
    assert committed(LocalStore(tmp_path)) == []
    assert list(tmp_path.glob("step-*/*/*")) == []


def test_a_temporary_file_that_could_not_be_removed_goes_at_the_next_start(
    tmp_path: Path, compiled: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.optimizer.iterations.assign(0)
    failing = Failing("unlink", 1)
    monkeypatch.setattr(os, "unlink", failing)
    fit(tmp_path, model=compiled, strike=(0, 2))
    monkeypatch.undo()
    (left,) = tmp_path.rglob(".tmp-*")
    dead, lock = tmp_path / ".tmp-4711-0123456789abcdef", tmp_path / "incarnations" / ".tmp-lock-00001.json"
    mine, foreign = tmp_path / ".tmp-4712-0123456789abcdef", left.with_name(".tmp-notes")
    for path in (dead, lock, mine, foreign):
        path.write_bytes(b"half")
    os.utime(mine, (time.time() + 3600,) * 2)  # Somebody writes it now.
    fit(tmp_path, model=compiled)
    assert failing.failed
    assert set(tmp_path.rglob(".tmp-*")) == {mine, foreign}
