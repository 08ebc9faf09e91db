"""A save_fn of a custom loop that saves in the background is complete, or known to have failed, before the exit."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from keras_preempt import PreemptionCheckpointHandler, TerminationConfig
from tests.test_handler import _nothing_is_left, checkpoint, preempt, sigterm

__all__ = ["_nothing_is_left"]


class Slow:
    """Writes a file in the background once it is allowed to, which is when somebody waits for it, or never."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waited = threading.Event()
        self.pool = ThreadPoolExecutor(1)

    def begin(self) -> Future[None]:
        return self.pool.submit(self._write)

    def _write(self) -> None:
        self.waited.wait(10)
        self.path.write_text("saved")

    def wait_until_finished(self) -> None:
        self.waited.set()
        self.pool.shutdown()

    def as_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._write)
        thread.start()
        return thread


def saves_by(slow: Slow, way: str) -> Callable[[], object]:
    """A save_fn for each way in which it can be known when a save is over."""

    def returns_a_future() -> object:
        threading.Timer(0.5, slow.waited.set).start()  # Who does not wait for it is gone by then.
        return slow.begin()

    def returns_a_thread() -> object:
        threading.Timer(0.5, slow.waited.set).start()
        return [slow.as_thread()]

    def returns_itself() -> object:
        slow.begin()
        return slow

    return {
        "future": returns_a_future,
        "thread in a list": returns_a_thread,
        "object": returns_itself,
        "method": _Checkpointer(slow).save,
        "partial": functools.partial(_Checkpointer(slow).save),
    }[way]


class _Checkpointer:
    """As Orbax has them."""

    def __init__(self, slow: Slow) -> None:
        self._slow = slow

    def save(self) -> bool:
        self._slow.begin()
        return True

    def wait_until_finished(self) -> None:
        self._slow.wait_until_finished()


@pytest.mark.parametrize("way", ["future", "thread in a list", "object", "method", "partial"])
def test_a_save_fn_that_saves_in_the_background_is_complete_before_the_exit(tmp_path: Path, way: str) -> None:
    slow, there = Slow(tmp_path / "file"), list[bool]()
    config = TerminationConfig(save_fn=saves_by(slow, way), exit_fn=lambda: there.append(slow.path.exists()))
    preempt(PreemptionCheckpointHandler(None, checkpoint(), tmp_path, config))
    assert there == [True]
    slow.wait_until_finished()


@pytest.mark.parametrize("whose", ["the handler's", "another"])
def test_tensorflows_saves_in_the_background_by_a_save_fn_are_complete_before_the_exit(
    tmp_path: Path, whose: str
) -> None:
    held, options = checkpoint(), tf.train.CheckpointOptions(enable_async=True)
    big = tf.train.Checkpoint(state=tf.Variable(tf.zeros((4 << 20,))))
    manager = tf.train.CheckpointManager(held if whose == "the handler's" else big, str(tmp_path / "own"), 1)

    def save() -> object:
        manager.save(options=options)
        return None if whose == "the handler's" else manager

    there: list[bool] = []
    config = TerminationConfig(
        save_fn=save, exit_fn=lambda: there.append((tmp_path / "own" / "ckpt-1.index").exists())
    )
    preempt(PreemptionCheckpointHandler(None, held, tmp_path, config))
    assert there == [True]


class Trainer:
    """Whose methods have names that mean something else here."""

    def save(self) -> str:
        return "saved"

    def sync(self) -> None:
        raise AssertionError("called without being asked for")

    join = result = sync


def fails() -> None:
    raise OSError("no space left")


async def never_awaited() -> None:
    raise AssertionError("nobody awaits this")


def failing_process() -> object:
    process = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(3,))
    process.start()
    return process


@pytest.mark.parametrize(
    ("save_fn", "status"),
    [
        (Trainer().save, 75),
        (lambda: ThreadPoolExecutor(1).submit(fails), 74),
        (failing_process, 74),
        (lambda: never_awaited(), 74),
    ],
    ids=["no save is returned", "future", "process", "coroutine"],
)
def test_a_save_in_the_background_that_fails_is_no_save_and_nothing_else_is_taken_for_one(
    tmp_path: Path, save_fn: Callable[[], object], status: int
) -> None:
    config = TerminationConfig(save_fn=save_fn)
    handler = PreemptionCheckpointHandler(None, checkpoint(), tmp_path, config)
    handler.run(sigterm)
    with pytest.raises(SystemExit) as left:
        handler.run(int)
    assert left.value.code == status


@pytest.mark.parametrize("who", ["the handler", "a save_fn"])
def test_what_tensorflow_fails_to_write_in_the_background_is_no_save(tmp_path: Path, who: str) -> None:
    """Its own `sync` raises nothing then."""
    options = tf.train.CheckpointOptions(enable_async=True)
    directory = tmp_path / "run"
    manager = tf.train.CheckpointManager(checkpoint(), str(directory), 1)
    save_fn = functools.partial(manager.save, options=options)
    config = TerminationConfig(save_fn=save_fn if who == "a save_fn" else None)
    handler = PreemptionCheckpointHandler(None, manager, termination_config=config)
    handler.run(sigterm)
    (directory / "ckpt-1.data-00000-of-00001" / "in its place").mkdir(parents=True)
    with pytest.raises(SystemExit) as left:
        handler.save_checkpoint_if_preempted(**({} if who == "a save_fn" else {"options": options}))
    assert left.value.code == 74


def test_a_save_fn_that_would_never_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a coroutine function"):
        PreemptionCheckpointHandler(None, checkpoint(), tmp_path, TerminationConfig(save_fn=never_awaited))
