"""Trains a model on JAX in one of several processes, which find each other by Keras' environment variables.

Run as: train_jax.py OUTPUT DIRECTORY KIND [tf | grain | own]. KIND is "dp" (DataParallel), "mp" (ModelParallel, one
row), "mp2" (ModelParallel, two columns of devices), "across" (ModelParallel, each row with a device of every process,
so that all of them bring the whole batch), or "alone": no distribution, so that each process of the job
trains a model of its own, with "own" in a directory of its own. With "tf" the input is a `tf.data.Dataset` that Keras
divides, with "grain" a shuffled `grain.MapDataset` of the rows of each process.

Writes what training has come to as OUTPUT.<process>.npz and .json, and what a restart has restored as
OUTPUT.restored.<process>.npz. The variable STRIKES says what happens where: [[process, place, signal], ...], with the
places "launch", "build", "before fit", "train", "batch <epoch> <batch>", "test <epoch> <batch>"; a signal is a name of
one, or "raise".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

if "tf" not in sys.argv:  # As where it is not installed: a fit needs none, and each process saves the time.
    for finder in list(sys.meta_path):

        def find_spec(name: str, path: Any = None, target: Any = None, find: Any = finder.find_spec) -> Any:
            return None if name == "tensorflow" else find(name, path, target)

        finder.find_spec = find_spec  # type: ignore[method-assign]

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_preempt import PreemptionCallback
from tests.fits import Doing

OUTPUT, DIRECTORY, KIND, *OPTIONS = sys.argv[1:]
ROWS, BATCH, EPOCHS = 144, 24, 3
VARIABLES = ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
STRIKES = json.loads(os.environ.get("STRIKES", "[]"))
if KIND == "alone":  # As in a job that JAX finds by itself: no variable of Keras is there.
    ADDRESSES, NUMBER, INDEX = (os.environ.pop(f"KERAS_DISTRIBUTION_{name}") for name in VARIABLES)
    jax.distributed.initialize(ADDRESSES.split(",")[0], int(NUMBER), int(INDEX))
elif os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES"):
    keras.distribution.initialize()
ME, PROCESSES = jax.process_index(), jax.process_count()
print("JOINED", ME, PROCESSES, flush=True)
if "own" in OPTIONS:
    DIRECTORY = f"{DIRECTORY}-{ME}"


def strike(place: str) -> None:
    for process, where, what in STRIKES:
        if process == ME and where == place:
            print("STRUCK", place, what, flush=True)
            if what == "raise":
                raise ValueError("the user's own error")
            os.kill(os.getpid(), getattr(signal, what))


def distribution() -> Any:
    devices = keras.distribution.list_devices()
    if KIND == "dp":
        return keras.distribution.DataParallel(auto_shard_dataset="tf" in OPTIONS)
    columns = {"mp2": 2, "across": PROCESSES}.get(KIND, len(devices))
    if KIND == "across":
        devices = np.array(devices).reshape(PROCESSES, -1).T.flatten().tolist()
    mesh = keras.distribution.DeviceMesh((len(devices) // columns, columns), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*wide/kernel"] = (None, "model")
    layout[".*wide/bias"] = ("model",)
    layout[".*narrow/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch", auto_shard_dataset="tf" in OPTIONS
    )


class Built(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        strike("build")

    def call(self, x: Any) -> Any:
        return x


class Places(Doing):
    """Strikes; keeps what the first step of this incarnation begins with."""

    epoch = 0
    restored = False

    def on_train_begin(self, logs: Any = None) -> None:
        strike("train")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.restored:
            self.restored = True
            np.savez(f"{OUTPUT}.restored.{ME}.npz", **values(self.model))
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0")))
        strike(f"batch {self.epoch} {batch}")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        strike(f"test {self.epoch} {batch}")


def values(model: Any) -> dict[str, Any]:
    """The whole values of all variables, gathered from the processes."""
    found = {}
    for number, variable in enumerate([*model.variables, *model.optimizer.variables]):
        value = variable.value
        if not (value.is_fully_replicated or value.is_fully_addressable):
            value = multihost_utils.process_allgather(value, tiled=True)
        found[f"{number:03d} {variable.path}"] = np.asarray(value)
    return found


def data(rows: Any, answers: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `fit` and its validation are given."""
    if "tf" in OPTIONS:
        import tensorflow as tf

        whole = tf.data.Dataset.from_tensor_slices((rows, answers))
        return {"x": whole.shuffle(ROWS, seed=1).batch(BATCH)}, {"validation_data": whole.batch(BATCH)}
    parts = PROCESSES
    if KIND == "alone":
        parts = 1
    elif KIND != "dp":  # Processes that divide no batch have the same rows.
        parts = max(1, len(jax.devices()) // 2 // jax.local_device_count()) if KIND == "mp2" else 1
    part = ME * parts // PROCESSES
    x, y = rows[part::parts], answers[part::parts]
    fitted = {"x": x, "y": y, "batch_size": BATCH // parts}
    if "grain" in OPTIONS:
        import grain

        batches = grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=5).batch(BATCH // parts)
        fitted = {"x": batches}
    return fitted, {"validation_data": (x[: 72 // parts], y[: 72 // parts])}


def main() -> None:
    strike("launch")
    if len(jax.devices()) > 1 and KIND != "alone":
        keras.distribution.set_distribution(distribution())
    keras.utils.set_random_seed(3)
    rows = np.random.rand(ROWS, 8).astype("float32")
    fitted, validated = data(rows, rows.sum(1, keepdims=True))
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            Built(),
            layers.Dense(24, activation="relu", name="wide"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(8, name="narrow"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    strike("before fit")
    callbacks = [Places(), PreemptionCallback(DIRECTORY, memory_dir=os.environ.get("MEMORY_DIR", "/dev/shm"))]
    fit = model.fit(**fitted, **validated, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    np.savez(f"{OUTPUT}.{ME}.npz", drawn=np.random.rand(3), **values(model))
    record = {
        "history": {name: [float(value).hex() for value in values] for name, values in fit.history.items()}
    }
    with open(f"{OUTPUT}.{ME}.json", "w") as file:
        json.dump(record, file)


main()
