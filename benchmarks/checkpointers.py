"""Ways to save and restore the variables of a model, all equally durable: ours, others, and the limit."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from files import flush
from safetensors.numpy import load_file, save_file

from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.report.events import EventLog
from keras_preempt.state.component import Content
from keras_preempt.state.model import ModelState
from keras_preempt.training.save.saver import Saver
from keras_preempt.training.save.tidier import Tidier

_CHUNK = 8 << 20  # bytes


class Checkpointer(Protocol):
    """Saves one model to a new directory, and restores it from there.

    Attributes:
        name: Its name in the tables.
    """

    name: str

    def prepare(self, folder: Path) -> None:
        """Does what comes before the first save of a run and is not measured."""
        ...

    def save(self, folder: Path) -> None:
        """Saves; everything is on the disk when this returns."""
        ...

    def restore(self, folder: Path) -> None:
        """Restores the saved values into the variables."""
        ...


class Ours:
    """As a fit of one worker saves when it is preempted, and as it begins after that."""

    name = "keras-preempt"

    def __init__(self, model: keras.Model) -> None:
        self._state = ModelState(model, tf.distribute.get_strategy())
        self._incarnation = 0

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        store = LocalStore(folder)
        store.prepare()
        self._incarnation = incarnations.claim(store, {})

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        store = LocalStore(folder)
        tidier = Tidier(store, Retention(1), self._incarnation)
        saver = Saver(store, self._state, self._incarnation, tidier, EventLog(0))
        position, content = Position(0, "train", 0, 0), Content({})
        prepared = saver.prepare(PLAN, position, content, copy=False, began_at=time.time())
        if saver.write(prepared).name is None:
            raise RuntimeError(f"Expected a save in {folder}. Received: none; see the log.")

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        store = LocalStore(folder)
        loaded = load(store, committed(store)[0], 0, 1)
        self._state.restore(loaded.values)


PLAN = Plan(1, Kind.PREEMPTED, (0,), ())
"""One worker, which writes all."""


class TensorFlow:
    """`tf.train.Checkpoint`."""

    name = "tf.train.Checkpoint"

    def __init__(self, model: keras.Model) -> None:
        self._checkpoint = tf.train.Checkpoint(variables=[variable.value for variable in model.variables])

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        self._checkpoint.write(str(folder / "checkpoint"))
        flush(folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        self._checkpoint.read(str(folder / "checkpoint")).assert_consumed()


class Keras:
    """`Model.save_weights`."""

    name = "model.save_weights"

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        self._model.save_weights(folder / "model.weights.h5")
        flush(folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        self._model.load_weights(folder / "model.weights.h5")


class Safetensors:
    """The safetensors library, given the memory of the variables itself."""

    name = "safetensors.save_file"

    def __init__(self, model: keras.Model) -> None:
        self._variables = {variable.path: variable.value for variable in model.variables}

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        save_file(_views(self._variables), folder / "model.safetensors")
        flush(folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        for name, value in load_file(folder / "model.safetensors").items():
            self._variables[name].assign(value)


class Orbax:
    """Orbax's PyTree checkpointer, given the memory of the variables itself."""

    name = "Orbax PyTree"

    def __init__(self, model: keras.Model) -> None:
        import orbax.checkpoint

        self._variables = {variable.path: variable.value for variable in model.variables}
        self._checkpointer = orbax.checkpoint.PyTreeCheckpointer()

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        self._checkpointer.save(folder / "tree", _views(self._variables))
        flush(folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        for name, value in self._checkpointer.restore(folder / "tree").items():
            self._variables[name].assign(value)


class Limit:
    """One stream of the same bytes, without any structure."""

    name = "os.write / os.readv"

    def __init__(self, model: keras.Model) -> None:
        self._variables = {variable.path: variable.value for variable in model.variables}

    def prepare(self, folder: Path) -> None:
        """See `Checkpointer.prepare`."""
        folder.mkdir()

    def save(self, folder: Path) -> None:
        """See `Checkpointer.save`."""
        descriptor = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for view in _views(self._variables).values():
            rest = memoryview(view.reshape(-1).view(np.uint8))
            while rest:
                rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
        os.fsync(descriptor)
        os.close(descriptor)
        flush(folder)

    def restore(self, folder: Path) -> None:
        """See `Checkpointer.restore`."""
        descriptor = os.open(folder / "bytes", os.O_RDONLY)
        read = []
        for variable in self._variables.values():
            array = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
            rest = memoryview(array.reshape(-1).view(np.uint8))
            while rest:
                rest = rest[os.readv(descriptor, [rest[:_CHUNK]]) :]
            read.append(array)
        os.close(descriptor)


def checkpointers(model: keras.Model) -> list[Checkpointer]:
    """Returns all that are installed on this machine; ours is the first, the limit the last."""
    kinds: list[Any] = [Ours, TensorFlow, Keras, Safetensors, Limit]
    if importlib.util.find_spec("orbax") is not None:
        kinds.insert(-1, Orbax)
    return [kind(model) for kind in kinds]


def _views(variables: dict[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: np.asarray(variable.read_value_no_copy()) for name, variable in variables.items()}
