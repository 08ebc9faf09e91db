"""`PreemptionCheckpointHandler` on remote workers: how it hears that one of them is preempted."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCheckpointHandler
from keras_preempt import handler as handler_module
from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.backend import place
from keras_preempt.backend.place import Place, RemoteWorkers
from keras_preempt.backend.tensorflow import errors
from tests.test_handler import _nothing_is_left, checkpoint, leaves

__all__ = ["_nothing_is_left"]


@pytest.fixture
def on_remote_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Place(workers=RemoteWorkers((("worker", 2),)))
    monkeypatch.setattr(handler_module, "join_loop", lambda resolver: (here, LocalCoordinator()))


def preemption_of(task: str) -> tf.errors.AbortedError:
    """As TensorFlow's op raises it."""
    return tf.errors.AbortedError(
        None, None, f"Task {task} was preempted.", {errors.WORKER_PREEMPTION: task.encode()}
    )


def fail_with(error: Exception) -> None:
    raise error


@pytest.mark.usefixtures("on_remote_workers")
@pytest.mark.parametrize("block", ["scope", "with"])
def test_the_error_that_tells_of_the_preemption_of_a_remote_worker_is_a_notice(
    block: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    with pytest.raises(Preempted), handler.watch_preemption_scope() if block == "scope" else handler:
        handler.run(fail_with, preemption_of("/job:worker/task:1"))
    assert (tmp_path / "ckpt-1.index").exists()
    assert "/job:worker/task:1 was preempted" in caplog.text


@pytest.mark.usefixtures("on_remote_workers")
def test_another_error_on_remote_workers_is_an_error(tmp_path: Path) -> None:
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    with pytest.raises(tf.errors.AbortedError, match="by the user"), handler.watch_preemption_scope():
        handler.run(fail_with, tf.errors.AbortedError(None, None, "by the user"))
    del handler
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("on_remote_workers")
def test_tensorflows_op_is_asked_before_each_run_where_it_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = [], []

    def op(preemption_key: str) -> None:
        asked.append(preemption_key)
        if len(asked) == 3:
            raise preemption_of("/job:worker/task:0")

    monkeypatch.setattr(errors, "check_op", lambda: op)
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    for number in range(2):
        handler.run(ran.append, number)
    with pytest.raises(Preempted):
        handler.run(ran.append, 2)
    assert ran == [0, 1]
    assert set(asked) == {place.PREEMPTION_NOTICE_KEY}
    assert (tmp_path / "ckpt-1.index").exists()
