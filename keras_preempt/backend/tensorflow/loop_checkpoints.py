"""The checkpoints of a custom loop: TensorFlow's own format, written by one worker where all can read it.

Saving is collective for some variables, so every worker has to save; what the others write is of no use to anyone.
They write it into a temporary directory of their own, which is there only while they do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.checkpoint.storage.staging import StagingDirectory
from keras_preempt.training import loop_save_fn as handler_save_fn
from keras_preempt.training.loop_order import CallOrder

TENSORFLOWS_COUNT = "checkpointed_runs"
"""Under this name TensorFlow's handler keeps its count, so that each finds what the other has saved."""

OUR_COUNT = "keras_preempt_runs"

_CHECK_INTERVAL = 1  # its place among the arguments of tf.train.CheckpointManager.save


class RunCount(tf.train.experimental.PythonState):
    """How many calls a loop has made, over all its restarts.

    It is asked whenever its checkpoint is saved, also by the user's own saves. A variable would have to be written
    at every step to be right in those.

    Attributes:
        runs: That number.
        written: What it was when it was last written into a checkpoint; None as long as it was not.
        restored: Whether a checkpoint had it.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.written: int | None = None
        self.restored = False

    def serialize(self) -> str:
        """Called by TensorFlow when it saves."""
        self.written = self.runs
        return str(self.runs)

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when it restores."""
        self.runs = int(string_value)
        self.restored = True


class LoopCheckpoints:
    """Saves and restores what a custom loop trains.

    Args:
        given: A `tf.train.Checkpoint` or `tf.train.CheckpointManager`.
        directory: Where the checkpoints are, for a `tf.train.Checkpoint`; all workers must be able to read it.
        chief: Whether this worker's checkpoints are those that stay.
        save_fn: Saves in place of the manager, if not None.
        staging_dir: Where the other workers make their temporary directories; None for the system's place.

    Attributes:
        count: The number of calls that goes with the state.

    Raises:
        ValueError: An argument is not what it should be.
        StoreUnavailable: No temporary directory can be made.
    """

    def __init__(
        self,
        given: Any,
        directory: str | os.PathLike[str] | None,
        *,
        chief: bool,
        save_fn: Callable[..., object] | None,
        staging_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        handler_save_fn.check(save_fn)
        self._save_fn = save_fn
        self._staging_dir = staging_dir
        if isinstance(given, tf.train.CheckpointManager):
            self._manager, self._writes_there = given, True
        elif isinstance(given, tf.train.Checkpoint):
            if directory is None or not os.fspath(directory):
                raise ValueError(
                    "Expected checkpoint_dir to be the directory of the checkpoints. Received: "
                    f"{directory!r}. Pass one, or a tf.train.CheckpointManager in place of the tf.train.Checkpoint."
                )
            self._manager = tf.train.CheckpointManager(given, os.fspath(directory), max_to_keep=1)
            self._writes_there = chief
        else:
            raise ValueError(
                "Expected checkpoint_or_checkpoint_manager to be a tf.train.Checkpoint or a "
                f"tf.train.CheckpointManager. Received: {given!r}."
            )
        # Now and not when there is no time left; and it sweeps away what killed processes have left here.
        StagingDirectory(staging_dir).remove()
        checkpoint = self._manager.checkpoint
        self.count: RunCount = _attached(checkpoint, OUR_COUNT, RunCount)
        self._variable = _attached(checkpoint, TENSORFLOWS_COUNT, _make_variable)

    @property
    def directory(self) -> str:
        """Where the checkpoints stay."""
        return str(self._manager.directory)

    def restore(self) -> str | None:
        """Restores the latest checkpoint; returns its path, or None if there is none."""
        self.count.restored = False
        path: str | None = self._manager.restore_or_initialize()
        if path is not None and not self.count.restored:
            self.count.runs = int(self._variable.numpy())  # TensorFlow's handler has written it, or the user.
        return path

    def call_order(self) -> CallOrder:
        """What tells whether calls come before the steps; to be made when the state is restored."""
        checkpoint = self._manager.checkpoint
        return CallOrder(checkpoint, (self._variable, checkpoint.save_counter))

    def size(self) -> int:
        """Bytes of the latest checkpoint; 0 if there is none yet, or if it is in a bucket."""
        path = self._manager.latest_checkpoint
        if path is None:
            return 0
        latest = Path(path)
        return sum(file.stat().st_size for file in latest.parent.glob(f"{latest.name}.*"))

    def save(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Saves now, and returns when that is complete; every worker has to.

        Args:
            args: For `tf.train.CheckpointManager.save`, or for save_fn.
            kwargs: The same.

        Returns:
            What was saved, in words.
        """
        self._variable.assign(self.count.runs)
        if self._save_fn is not None:
            handler_save_fn.wait(self._save_fn, self._save_fn(*args, **kwargs))
            self._manager.sync()  # It may have written this checkpoint, in the background.
            return "through save_fn"
        if self._writes_there:
            return _save(self._manager, args, kwargs)
        with StagingDirectory(self._staging_dir) as staging:
            _save(tf.train.CheckpointManager(self._manager.checkpoint, str(staging.path), 1), args, kwargs)
        return f"in {self.directory}, by the chief"


def _save(manager: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    wanted = dict(kwargs)
    if len(args) <= _CHECK_INTERVAL:
        # A notice cannot wait for the interval at which the user saves while nothing happens.
        wanted.setdefault("check_interval", False)
    path = manager.save(*args, **wanted)
    manager.sync()  # With CheckpointOptions(enable_async=True) it is being written still.
    handler_save_fn.check_written(path)
    return str(path)


def _attached(checkpoint: Any, name: str, make: Callable[[], Any]) -> Any:
    """What the checkpoint holds under this name, also from an earlier handler; makes it if there is nothing."""
    found = getattr(checkpoint, name, None)
    if found is None:
        found = make()
        setattr(checkpoint, name, found)
    return found


def _make_variable() -> Any:
    return tf.Variable(0, dtype=tf.int64, trainable=False, name=TENSORFLOWS_COUNT)
