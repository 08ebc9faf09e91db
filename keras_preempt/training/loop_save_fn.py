"""The end of a save that a user's `save_fn` has made, also where that goes on in the background."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_TENSORFLOWS = (tf.train.Checkpoint, tf.train.CheckpointManager)

_WAITS = ("wait_until_finished", "result", "sync", "join")
"""Methods that return when what runs in the background is over: of futures (`concurrent.futures`, Orbax), of
checkpointers (Orbax), of TensorFlow's checkpoints and managers, and of threads and processes."""


def check(save_fn: Callable[..., object] | None) -> None:
    """Refuses what cannot be called as a function is.

    Raises:
        ValueError: It is a coroutine function.
    """
    if inspect.iscoroutinefunction(save_fn):
        raise ValueError(
            f"Expected save_fn to save when it is called. Received: {save_fn!r}, a coroutine function, which then "
            "does nothing. Call it through asyncio.run."
        )


def wait(save_fn: Callable[..., object], returned: object) -> None:
    """Waits until a save is complete.

    Args:
        save_fn: What has saved. Of a method of a checkpointer, that is waited for as well.
        returned: What it has returned: what is to be waited for, or several of that in a list or tuple. Anything else
            says nothing.

    Raises:
        Exception: What the save has raised in the background.
        TypeError: It was not begun: it is a coroutine.
        ChildProcessError: It was made by a process that has failed.
        FileNotFoundError: TensorFlow was to write it in the background, and has not.
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
        # Of an object that nobody has named, only what can mean nothing else is called.
        if isinstance(owner, _TENSORFLOWS) or hasattr(owner, "wait_until_finished"):
            _wait_for(owner)
        if isinstance(owner, tf.train.CheckpointManager) and isinstance(returned, str):
            check_written(returned)


def check_written(path: str | None) -> None:
    """Makes sure that a checkpoint of TensorFlow's is there.

    What has failed in the background is raised nowhere: TensorFlow's `sync` waits for it, and says nothing.

    Raises:
        FileNotFoundError: It is not.
    """
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
