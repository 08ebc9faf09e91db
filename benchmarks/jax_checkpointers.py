"""Ways to save and restore the variables of a model on JAX, all equally durable: ours, Orbax', and the limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import keras
import numpy as np
import orbax.checkpoint as ocp
from files import flush

from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.report.events import EventLog
from keras_preempt.state.component import Content
from keras_preempt.state.model import ModelState
from keras_preempt.training.save.saver import Saved, Saver
from keras_preempt.training.save.saves import BackgroundSave
from keras_preempt.training.save.tidier import Tidier

_CHUNK = 8 << 20  # bytes
_PLAN = Plan(1, Kind.PREEMPTED, (0,), ())


class Checkpointer(Protocol):
    """Saves one model to a new directory, and restores it from there.

    Attributes:
        name: Its name in the tables.
        background: Whether training goes on while it writes.
    """

    name: str
    background: bool

    def prepare(self, folder: Path) -> None:
        """Does what comes before the first save of a run and is not measured."""
        ...

    def begin(self, folder: Path) -> Callable[[], None]:
        """Saves until training may go on; everything is on the disk when what is returned has been called."""
        ...

    def restore(self, folder: Path) -> None:
        """Restores the saved values into the variables."""
        ...


class Ours:
    """As a fit of one process saves, and as it begins after that.

    Args:
        model: The model.
        background: Whether training goes on after the state is copied, as `save_every` has it; else as at a notice.
    """

    def __init__(self, model: keras.Model, *, background: bool = False) -> None:
        self.name = "keras-preempt, background" if background else "keras-preempt, notice"
        self.background = background
        self._model = model
        self._state = ModelState(model, backend().strategy_of(model))
        self._incarnation = 0

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        store = LocalStore(folder)
        store.prepare()
        self._incarnation = incarnations.claim(store, {})

    def begin(self, folder: Path) -> Callable[[], None]:
        """See `Checkpointer.begin`."""
        store = LocalStore(folder)
        tidier = Tidier(store, Retention(1), self._incarnation)
        saver = Saver(store, self._state, self._incarnation, tidier, EventLog(0))
        position, content = Position(0, "train", 0, 0), Content({})
        prepared = saver.prepare(_PLAN, position, content, copy=self.background, began_at=time.time())
        if not self.background:
            _check(saver.write(prepared), folder)
            return _nothing
        save = BackgroundSave()
        save.start(position, partial(saver.write, prepared))
        return lambda: _check(save.wait(), folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        store = LocalStore(folder)
        loaded = load(store, committed(store)[0], 0, 1)
        self._state.restore(loaded.values)
        jax.block_until_ready(values_of(self._model))


class Orbax:
    """Orbax' CheckpointManager.

    Args:
        model: The model.
        background: Whether training goes on while it writes.
    """

    def __init__(self, model: keras.Model, *, background: bool = False) -> None:
        self.name = "Orbax, async" if background else "Orbax, sync"
        self.background = background
        self._model = model

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()
        # Made here, since a program makes it once.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=1, enable_async_checkpointing=self.background, create=True
        )
        self._manager = ocp.CheckpointManager(folder.resolve() / "run", options=options)

    def begin(self, folder: Path) -> Callable[[], None]:
        """See `Checkpointer.begin`."""
        self._manager.save(1, args=ocp.args.StandardSave(values_of(self._model)))

        def end() -> None:
            self._manager.wait_until_finished()
            flush(folder)

        if not self.background:
            end()
        return end if self.background else _nothing

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        values = values_of(self._model)
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, values)
        restored = self._manager.restore(1, args=ocp.args.StandardRestore(wanted))
        for variable in self._model.variables:
            variable.assign(restored[variable.path])
        jax.block_until_ready(values_of(self._model))


class Limit:
    """One stream of the same bytes, without any structure."""

    def __init__(self, model: keras.Model) -> None:
        self.name = "os.write / os.readv"
        self.background = False
        self._model = model

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def begin(self, folder: Path) -> Callable[[], None]:
        """See `Checkpointer.begin`."""
        descriptor = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for value in values_of(self._model).values():
            rest = memoryview(np.asarray(value).reshape(-1).view(np.uint8))
            while rest:
                rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
        os.close(descriptor)
        flush(folder)
        return _nothing

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`: without the variables, for which it would have to copy."""
        descriptor = os.open(folder / "bytes", os.O_RDONLY)
        for value in values_of(self._model).values():
            array = np.empty(value.shape, value.dtype)
            rest = memoryview(array.reshape(-1).view(np.uint8))
            while rest:
                rest = rest[os.readv(descriptor, [rest[:_CHUNK]]) :]
        os.close(descriptor)


def _check(saved: Saved | None, folder: Path) -> None:
    if saved is None or saved.name is None:
        raise RuntimeError(f"Expected a save in {folder}. Received: none; see the log.")


def _nothing() -> None:
    """Everything is on the disk already."""


def values_of(model: keras.Model) -> dict[str, Any]:
    """Returns the arrays of a model's variables, by path."""
    return {variable.path: variable.value for variable in model.variables}


def checkpointers(model: keras.Model) -> list[Checkpointer]:
    """Returns all; ours is the first, the limit the last."""
    ours, orbax = ([kind(model), kind(model, background=True)] for kind in (Ours, Orbax))
    return [*ours, *orbax, Limit(model)]
