"""The checkpoints of a custom loop, in TensorFlow's own format, written by one worker where all can read them.

Saving is collective for some variables, so every worker has to save. What the others write is not needed: each writes
to a temporary directory, and then removes it.

A user's `save_fn` may save instead, perhaps in the background; its end is waited for.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_preempt.checkpoint.storage.staging import StagingDirectory, check_staging_dir

logger = logging.getLogger("keras_preempt")

TENSORFLOWS_COUNT = "checkpointed_runs"
"""Where TensorFlow's handler keeps its count: each handler finds what the other has saved."""

OUR_COUNT = "keras_preempt_runs"

_CHECK_INTERVAL = 1  # Its position among the arguments of tf.train.CheckpointManager.save.

_TENSORFLOWS = (tf.train.Checkpoint, tf.train.CheckpointManager)

_WAITS = ("wait_until_finished", "result", "sync", "join")
"""Methods that wait for what runs in the background: of futures (`concurrent.futures`, Orbax), checkpointers (Orbax),
TensorFlow's checkpoints and managers, threads and processes."""


class RunCount(tf.train.experimental.PythonState):
    """How many calls (`runs`) a loop has made, over all its restarts.

    TensorFlow asks for it whenever its checkpoint is saved, also by the user. A variable would have to be written at
    every step to be right in the user's saves.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.written: int | None = None  # The number in the checkpoint that was written last.
        self.restored = False  # Whether the restored checkpoint had the number.

    def serialize(self) -> str:
        self.written = self.runs
        return str(self.runs)

    def deserialize(self, string_value: bytes) -> None:
        self.runs = int(string_value)
        self.restored = True


class LoopCheckpoints:
    """Saves and restores what a custom loop trains, with the number of its calls (`count`).

    The checkpoints of the chief stay, in `directory` or where the manager has them; those of the other workers go into
    temporary directories in `staging_dir`. Raises ValueError for an argument, and StoreUnavailable if no temporary
    directory can be made.
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
        if inspect.iscoroutinefunction(save_fn):
            raise ValueError(
                f"Expected save_fn to save when it is called. Received: {save_fn!r}, a coroutine function, which then "
                "does nothing. Call it through asyncio.run."
            )
        check_staging_dir(staging_dir)
        self._save_fn = save_fn
        self._staging_dir = staging_dir
        if isinstance(given, tf.train.CheckpointManager):
            self._manager, self._writes_there = given, True
        elif isinstance(given, tf.train.Checkpoint):
            path = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else None
            if not isinstance(path, str) or not path.strip():
                raise ValueError(
                    "Expected checkpoint_dir to be the directory of the checkpoints. Received: "
                    f"{directory!r}. Pass one, or a tf.train.CheckpointManager in place of the tf.train.Checkpoint."
                )
            self._manager = tf.train.CheckpointManager(given, path, max_to_keep=1)
            self._writes_there = chief
        else:
            raise ValueError(
                "Expected checkpoint_or_checkpoint_manager to be a tf.train.Checkpoint or a "
                f"tf.train.CheckpointManager. Received: {given!r}."
            )
        # Checked now, not when there is no time left; this also removes what killed processes have left there.
        StagingDirectory(staging_dir).remove()
        checkpoint = self._manager.checkpoint
        self.count: RunCount = _attached(checkpoint, OUR_COUNT, RunCount)
        self._variable = _attached(
            checkpoint,
            TENSORFLOWS_COUNT,
            lambda: tf.Variable(0, dtype=tf.int64, trainable=False, name=TENSORFLOWS_COUNT),
        )
        self.directory = str(self._manager.directory)

    def restore(self) -> str | None:
        """Restores the latest checkpoint; returns its path, or None if there is none."""
        self.count.restored = False
        path: str | None = self._manager.restore_or_initialize()
        if path is not None and not self.count.restored:
            self.count.runs = int(self._variable.numpy())  # Written by TensorFlow's handler, or by the user.
        return path

    def call_order(self) -> CallOrder:
        """Returns what finds out whether calls come before the steps. Called right after the state is restored."""
        checkpoint = self._manager.checkpoint
        return CallOrder(checkpoint, (self._variable, checkpoint.save_counter))

    def size(self) -> int:
        """Returns the bytes of the latest checkpoint; 0 if there is none yet, or if it is in a bucket."""
        path = self._manager.latest_checkpoint
        if path is None:
            return 0
        latest = Path(path)
        return sum(file.stat().st_size for file in latest.parent.glob(f"{latest.name}.*"))

    def save(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Saves, and returns in words where to when that is complete. Every worker has to call it.

        The arguments are for `tf.train.CheckpointManager.save`, or for save_fn.
        """
        self._variable.assign(self.count.runs)
        if self._save_fn is not None:
            wait_for_save(self._save_fn, self._save_fn(*args, **kwargs))
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
        # A notice cannot wait for the interval of the user's regular saves.
        wanted.setdefault("check_interval", False)
    path = manager.save(*args, **wanted)
    manager.sync()  # With CheckpointOptions(enable_async=True) it is still being written.
    check_written(path)
    return str(path)


def _attached(checkpoint: Any, name: str, make: Callable[[], Any]) -> Any:
    """Returns what the checkpoint holds under a name, perhaps from an earlier handler; makes it if it holds nothing."""
    found = getattr(checkpoint, name, None)
    if found is None:
        found = make()
        setattr(checkpoint, name, found)
    return found


def wait_for_save(save_fn: Callable[..., object], returned: object) -> None:
    """Waits until what `save_fn` has begun is complete.

    It may have returned something to wait for, or a list or tuple of such; anything else is ignored. If it is a method
    of a checkpointer, that is waited for as well. Raises what the save has raised in the background; TypeError for a
    coroutine, which has not begun; ChildProcessError if the process that saves has failed; FileNotFoundError if
    TensorFlow has not written what it should have written in the background.
    """
    if inspect.isawaitable(returned) and not hasattr(returned, "result"):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError(
            f"Expected save_fn to save when it is called. Received: {returned!r}, which nobody awaits. Call it "
            "through asyncio.run."
        )
    for each in returned if isinstance(returned, (list, tuple)) else [returned]:
        _wait_for(each)
    while isinstance(save_fn, functools.partial):
        save_fn = save_fn.func
    if inspect.ismethod(save_fn):
        owner = save_fn.__self__
        # save_fn did not return this object: only a method that can mean nothing else is called.
        if isinstance(owner, _TENSORFLOWS) or hasattr(owner, "wait_until_finished"):
            _wait_for(owner)
        if isinstance(owner, tf.train.CheckpointManager) and isinstance(returned, str):
            check_written(returned)


def check_written(path: str | None) -> None:
    """Raises FileNotFoundError if a checkpoint of TensorFlow's is not there: `sync` reports no failure to write it."""
    if path is not None and not tf.io.gfile.exists(f"{path}.index"):  # This file is written last.
        raise FileNotFoundError(
            f"Expected the checkpoint {path} to be written in the background. Received: no {path}.index. Look for "
            "TensorFlow's own message about it, and whether the directory can be written to."
        )


def _wait_for(one: Any) -> None:
    if one is None or isinstance(one, (str, bytes, type)):
        return
    for name in _WAITS:
        method = getattr(one, name, None)
        if callable(method):
            method()
            break
    if isinstance(one, tf.train.CheckpointManager) and one.latest_checkpoint is None:
        raise FileNotFoundError(
            f"Expected a checkpoint in {one.directory}. Received: none, after a save. Look for TensorFlow's own "
            "message about it."
        )
    code = getattr(one, "exitcode", None)
    if code:
        raise ChildProcessError(f"Expected the process that saves to end well. Received: exit status {code}.")


_MOST = 4096
"""How many elements of a variable are compared at most, evenly spread: more would be slow for a large model."""

_VARIABLES = (tf.Variable, tf.distribute.DistributedValues)


class CallOrder:
    """Whether a custom loop calls `save_checkpoint_if_preempted` before each step or after it.

    The call cannot know whether its step is done, and the checkpoint needs the right count: with one too many, the
    restart leaves a step out; with one too few, it repeats one. The two orders differ only in the first call of a
    process, which comes before any step or after one. A step changes some of the saved state. So the state is compared
    once: if it is as it was when the handler was made, the calls come before the steps. `ignored` are variables in the
    `tf.train.Checkpoint` that no step changes.
    """

    def __init__(self, checkpoint: Any, ignored: tuple[Any, ...] = ()) -> None:
        self._checkpoint = checkpoint
        self._ignored = {id(each) for each in ignored}
        self._at_first: bytes | None = self._digest()
        self._steps_first: bool | None = None

    @property
    def steps_first(self) -> bool:
        """Whether a step was done when this was first asked; True if nothing is saved that would show it."""
        if self._steps_first is None:
            self._steps_first = self._at_first is None or self._digest() != self._at_first
            self._at_first = None
            order = "after" if self._steps_first else "before"
            logger.info("save_checkpoint_if_preempted is called %s each step.", order)
        return self._steps_first

    def _digest(self) -> bytes | None:
        """Returns a digest of what is saved; None if there are no variables."""
        digest, found = hashlib.blake2b(digest_size=16), False
        for part in self._parts():
            found = True
            digest.update(f"{part.dtype.name}{part.shape}".encode())
            try:
                flat = tf.reshape(part, [-1])  # On the variable's device: only the sample is fetched.
            except tf.errors.FailedPreconditionError:
                continue  # It has no value yet.
            digest.update(flat[:: -(-max(1, part.shape.num_elements()) // _MOST)].numpy().tobytes())
        return digest.digest() if found else None

    def _parts(self) -> Iterator[Any]:
        """Yields the variables; of distributed ones the first replica's part, since all would take a collective."""
        for each in tf.train.TrackableView(self._checkpoint).descendants():
            variable = each.value if isinstance(each, keras.Variable) else each
            if id(each) in self._ignored or not isinstance(variable, _VARIABLES):
                continue
            part = variable.values[0] if isinstance(variable, tf.distribute.DistributedValues) else variable
            kind = part.dtype
            numeric = kind.is_floating or kind.is_integer or kind.is_bool or kind.is_complex
            if numeric and part.shape.is_fully_defined():
                yield part
