"""What the public API of `PreemptionCheckpointHandler` promises, in this process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCheckpointHandler, TerminationConfig
from keras_preempt.notices.signals import EndsWith
from keras_preempt.process import environment, exit_codes
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from keras_preempt.testing import FakeMetadata

TENSORFLOWS = tf.distribute.experimental.PreemptionCheckpointHandler


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")
    handler = signal.getsignal(signal.SIGTERM)
    gc.freeze()  # What is there already need not be looked through.
    yield
    gc.collect()  # A test's own exception may hold its frames.
    gc.unfreeze()
    assert [thread.name for thread in threading.enumerate() if "keras_preempt" in thread.name] == []
    if isinstance(signal.getsignal(signal.SIGTERM), EndsWith):  # The process was to end.
        signal.signal(signal.SIGTERM, handler)
    assert signal.getsignal(signal.SIGTERM) is handler


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def checkpoint() -> Any:
    return tf.train.Checkpoint(step=tf.Variable(0, dtype=tf.int64))


def leaves() -> TerminationConfig:
    return TerminationConfig(exit_fn=lambda: None)


def preempt(handler: Any, function: Callable[[], object] = lambda: None) -> None:
    """Gives notice in a run, and runs again."""
    handler.run(sigterm)
    with pytest.raises((Preempted, SystemExit)):
        handler.run(function)


def test_a_loss_outside_of_run_ends_the_program_with_its_status_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_codes, "_judges", [])
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    loss = tf.errors.UnavailableError(None, None, "Socket closed")
    assert exit_codes.exit_status_of(loss) is None
    PreemptionCheckpointHandler(None, checkpoint(), tmp_path).close()
    assert exit_codes.exit_status_of(loss) == EXIT_WORKER_LOST


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((object(), "directory"), "Expected checkpoint_or_checkpoint_manager"),
        ((tf.train.Checkpoint(), "directory", lambda: True), "Expected termination_config"),
        ((tf.train.Checkpoint(), None), "Expected checkpoint_dir"),
        ((tf.train.Checkpoint(), ""), "Expected checkpoint_dir"),
    ],
)
def test_wrong_arguments_are_said(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PreemptionCheckpointHandler(None, *arguments)


@pytest.mark.chaos
@pytest.mark.parametrize("directory", [None, ""])
def test_tensorflows_class_does_not_say_that_the_directory_is_missing(directory: str | None) -> None:
    with pytest.raises(TypeError):
        TENSORFLOWS(None, checkpoint(), directory)


def test_parameter_servers_are_refused(tmp_path: Path) -> None:
    cluster = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)
    with pytest.raises(ValueError, match="parameter servers"):
        PreemptionCheckpointHandler(resolver, checkpoint(), tmp_path)


def test_run_is_the_function_with_its_arguments_its_result_and_its_errors(tmp_path: Path) -> None:
    with PreemptionCheckpointHandler(None, checkpoint(), tmp_path) as handler:
        assert handler.run(lambda *args, **kwargs: (args, kwargs), 1, 2, a=3) == ((1, 2), {"a": 3})
        assert handler.total_run_calls == 1
        with pytest.raises(ZeroDivisionError):
            handler.run(divmod, 1, 0)
        assert handler.total_run_calls == 1
        handler.save_checkpoint_if_preempted()
        assert handler.total_run_calls == 2
    assert list(tmp_path.iterdir()) == []


def test_exit_fn_that_returns_raises_preempted_and_a_new_handler_goes_on(tmp_path: Path) -> None:
    called: list[int] = []
    config = TerminationConfig(exit_fn=lambda: called.append(threading.active_count()))
    held = checkpoint()
    handler = PreemptionCheckpointHandler(None, held, tmp_path, config)
    assert handler.resumed is None
    before = threading.active_count()
    preempt(handler)
    assert called == [called[0]]
    assert called[0] < before  # All threads had ended.
    handler.run(lambda: held.step.assign(5))  # Nobody watches any more, and nothing breaks.
    again = PreemptionCheckpointHandler(None, held, tmp_path)
    assert held.step.numpy() == 0
    assert again.total_run_calls == 1
    assert again.resumed is not None
    assert (again.resumed.step, again.resumed.epoch, again.resumed.why) == (1, None, None)
    assert again.resumed.checkpoint.startswith("ckpt-")
    again.close()
    again.close()


def test_the_configuration_of_tensorflow_is_understood(tmp_path: Path) -> None:
    saved: list[tuple[Any, ...]] = []
    config = tf.distribute.experimental.TerminationConfig(
        exit_fn=lambda: None, save_fn=lambda *args, **kwargs: saved.append((args, kwargs))
    )
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, config)
    handler.run(sigterm)
    with pytest.raises(Preempted):
        handler.save_checkpoint_if_preempted(7, name="x")
    assert saved == [((7,), {"name": "x"})]
    assert list(tmp_path.iterdir()) == []


def test_tensorflows_class_and_ours_go_on_from_each_others_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    earlier = signal.getsignal(signal.SIGTERM)
    try:
        theirs = TENSORFLOWS(
            None, checkpoint(), str(tmp_path), tf.distribute.experimental.TerminationConfig(exit_fn=list)
        )
        theirs.run(sigterm)
        theirs.run(int)
        theirs.run(int)  # It runs one step more than it has to, and saves before this one.
    finally:
        signal.signal(signal.SIGTERM, earlier)
    held = checkpoint()
    ours = PreemptionCheckpointHandler(None, held, tmp_path, leaves())
    assert ours.total_run_calls == 2
    held.step.assign(41)
    preempt(ours)
    plain = checkpoint()  # Which needs nothing of ours.
    plain.restore(tf.train.latest_checkpoint(str(tmp_path))).assert_existing_objects_matched()
    assert plain.step.numpy() == 41
    try:
        assert TENSORFLOWS(None, checkpoint(), str(tmp_path)).total_run_calls == 3
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_max_to_keep_of_the_users_manager_is_respected(tmp_path: Path) -> None:
    for number in range(4):
        manager = tf.train.CheckpointManager(checkpoint(), str(tmp_path), max_to_keep=2)
        handler = PreemptionCheckpointHandler(None, manager, termination_config=leaves())
        assert handler.total_run_calls == number
        preempt(handler)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-3.index", "ckpt-4.index"]


def test_a_save_that_is_written_in_the_background_is_over_before_the_exit(tmp_path: Path) -> None:
    held, options = checkpoint(), tf.train.CheckpointOptions(enable_async=True)
    there: list[bool] = []
    config = TerminationConfig(exit_fn=lambda: there.append((tmp_path / "ckpt-1.index").exists()))
    handler = PreemptionCheckpointHandler(None, held, tmp_path, config)
    sigterm()
    with pytest.raises(Preempted):
        handler.save_checkpoint_if_preempted(options=options)
    assert there == [True]


def test_what_cannot_be_saved_is_told_by_the_exit_status(tmp_path: Path) -> None:
    def save() -> None:
        raise OSError("no space left")

    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, TerminationConfig(save_fn=save))
    handler.run(sigterm)
    with pytest.raises(SystemExit) as left:
        handler.run(int)
    assert left.value.code == 74


def test_mirrored_strategy_saves_and_restores(tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        state = tf.Variable(0.0)
        handler = PreemptionCheckpointHandler(
            strategy.cluster_resolver, tf.train.Checkpoint(state=state), tmp_path, leaves()
        )

    @tf.function
    def step() -> None:
        strategy.run(lambda: state.assign_add(1.0))

    handler.run(step)
    preempt(handler, step)
    state.assign(9.0)
    PreemptionCheckpointHandler(None, tf.train.Checkpoint(state=state), tmp_path).close()
    assert state.numpy() == 1.0


@pytest.mark.chaos
def test_the_preemption_of_a_spot_machine_of_google_is_not_heard_by_tensorflows_watcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which its class has in a thread, on machines with a GPU: it asks for maintenance, and for nothing else."""
    from tensorflow.python.distribute.failure_handling import failure_handling_util

    with FakeMetadata(["gce"]) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        fake.gce.preempt()
        assert not failure_handling_util.termination_watcher_function_gce()


@pytest.mark.parametrize("way", ["close", "with", "scope", "deletion"])
def test_the_end_of_training_answers_what_came_in_its_last_step(tmp_path: Path, way: str) -> None:
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    if way == "with":
        with handler:
            handler.run(sigterm)
    elif way == "scope":
        with pytest.raises(Preempted), handler.watch_preemption_scope():
            handler.run(sigterm)
    else:
        handler.run(sigterm)
        if way == "close":
            handler.close()
    del handler
    assert (tmp_path / "ckpt-1.index").exists()


@pytest.mark.parametrize(
    ("error", "saved"),
    [
        (ValueError("in the middle"), []),
        (StopIteration(), ["ckpt-1.index"]),  # The end of the data is no failure.
        (tf.errors.OutOfRangeError(None, None, "end of data"), ["ckpt-1.index"]),
    ],
)
def test_a_state_in_the_middle_of_a_step_is_not_saved(
    tmp_path: Path, error: Exception, saved: list[str]
) -> None:
    def fail() -> None:
        sigterm()
        raise error

    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    with pytest.raises(type(error)):
        handler.run(fail)
    error.__traceback__ = None  # It holds the handler.
    del handler
    gc.collect()
    assert [path.name for path in tmp_path.glob("*.index")] == saved


def test_two_handlers_at_once_both_save(tmp_path: Path) -> None:
    first = PreemptionCheckpointHandler(None, checkpoint(), tmp_path / "1", leaves())
    second = PreemptionCheckpointHandler(None, checkpoint(), tmp_path / "2", leaves())
    second.run(sigterm)
    with pytest.raises(Preempted):
        second.run(int)
    sigterm()
    with pytest.raises(Preempted):
        first.run(int)
    assert len(list(tmp_path.glob("*/ckpt-1.index"))) == 2


def test_a_handler_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    (tmp_path / "ckpt-1.index").write_text("not a checkpoint")
    with pytest.raises(tf.errors.OpError):
        PreemptionCheckpointHandler(None, checkpoint(), tmp_path)


def test_a_forked_child_does_not_end_its_parents_handler(tmp_path: Path) -> None:
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, leaves())
    child = os.fork()
    if child == 0:
        handler.close()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    preempt(handler)
    assert (tmp_path / "ckpt-1.index").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_notice_in_the_last_run_it_is_said_whether_its_save_worked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    def save() -> None:
        if fails:
            raise OSError("no space left")

    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, TerminationConfig(save_fn=save))
    handler.run(sigterm)
    handler.close()
    assert ("the finished state is saved" in caplog.text) is not fails
    assert ("the finished state is NOT saved" in caplog.text) is fails


def test_a_loop_whose_time_is_over_saves_before_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = time.time() + 5
    monkeypatch.setenv(environment.END_TIME, str(end))
    state = checkpoint()
    handler = PreemptionCheckpointHandler(None, state, str(tmp_path), leaves())

    def train() -> None:
        while True:
            handler.run(time.sleep, 0.02)
            state.step.assign_add(1)

    with pytest.raises(Preempted):
        train()
    assert time.time() < end
    monkeypatch.delenv(environment.END_TIME)
    trained, state = int(state.step), checkpoint()
    with PreemptionCheckpointHandler(None, state, str(tmp_path)) as resumed:
        assert resumed.total_run_calls == int(state.step) == trained > 50
