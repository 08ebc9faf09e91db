"""One worker of a job that is preempted once and started again; it records its progress with times.

Run as: FOLDER WAY BATCHES AFTER FIRST|AGAIN [--mirrored] [--endless]. WAY is `STATE` or `REPLAY`: how the input gets
back to where it was; or `ARRAYS`: three epochs of arrays, preempted in the last one. With --mirrored one process trains
on two logical devices; with --endless, a dataset is repeated, the model is small, and each step takes `STEP` seconds,
as on an accelerator, for which the host waits. Steps before a replay do not: it takes as long whatever they take.
BATCHES are trained on before the preemption, AFTER of them after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from keras_preempt.process import this_process

STARTED = this_process.started_at()  # Of the process, before Python was there.

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402
from keras_preempt.backend.keras.input_feed import InputFeed  # noqa: E402
from keras_preempt.backend.seam import backend  # noqa: E402
from keras_preempt.state import inputs  # noqa: E402

IMPORTED = time.time()

STATE, REPLAY, ARRAYS = "state", "replay", "arrays"
EPOCHS = 3  # of arrays
BATCH, SIZE, BUFFER = 32, 32, 1024  # images in a batch, pixels of a side, images in the shuffle buffer
REPEATED = 100  # batches, of a dataset that is repeated
STEP = 0.01  # seconds; about four times what it takes to draw a batch


class Journal(keras.callbacks.Callback):  # type: ignore[misc]
    """Records when the hooks were called at this place among the callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.fit_began = 0.0
        self.steps_before = 0
        self.steps: list[float] = []

    def on_train_begin(self, logs: object = None) -> None:
        """What comes before this callback has begun."""
        self.fit_began = time.time()
        self.steps_before = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """A step is done, and its values are there."""
        self.steps.append(time.time())

    def get_state(self) -> dict[str, object]:
        """Nothing to keep; without this the PreemptionCallback warns that nothing is kept."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """See `get_state`."""


class Slow(Journal):
    """Makes each step take `STEP` seconds."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """The accelerator is busy."""
        time.sleep(STEP)


class Preemption(Journal):
    """Sends this process SIGTERM after so many steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Another step is done."""
        super().on_train_batch_end(batch, logs)
        if len(self.steps) == self._after:
            os.kill(os.getpid(), signal.SIGTERM)


class Timed:
    """Stands in for a function or class of a module, and records how long its calls take."""

    def __init__(self, module: Any, name: str) -> None:
        self.seconds = 0.0
        self.result: Any = None
        self._function = getattr(module, name)
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        began = time.time()
        self.result = self._function(*args, **kwargs)
        self.seconds += time.time() - began
        return self.result


class TimedNew:
    """Records how long it takes to make each iterator of the input."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        original, seconds = InputFeed.new, self.seconds

        def new(feed: InputFeed, *arguments: Any) -> Any:
            began = time.time()
            made = original(feed, *arguments)
            seconds.append(time.time() - began)
            return made

        InputFeed.new = new  # type: ignore[method-assign]


def small_model() -> Any:
    """One whose steps take next to no time."""
    layers = keras.layers
    made = keras.Sequential(
        [keras.Input((SIZE, SIZE, 3)), layers.AveragePooling2D(8), layers.Flatten(), layers.Dense(10)]
    )
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def model() -> Any:
    """A small convolutional network."""
    layers = keras.layers
    made = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return made


def data(way: str, batches: int, *, endless: bool) -> Any:
    """Shuffled images, flipped at random; for `REPLAY` by an operation whose state TensorFlow cannot save."""
    batches = REPEATED if endless else batches
    images = np.random.default_rng(0).integers(0, 256, (batches * BATCH, SIZE, SIZE, 3), np.uint8)
    labels = np.arange(len(images)) % 10

    def augment(number: Any, example: Any) -> Any:
        image, label = tf.cast(example[0], tf.float32) / 255.0, example[1]
        if way == REPLAY:
            return tf.image.random_flip_left_right(image, seed=1), label
        return tf.image.stateless_random_flip_left_right(image, seed=(1, number)), label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).enumerate().shuffle(BUFFER, seed=1)
    if endless:
        dataset = dataset.repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.map(augment).batch(BATCH, drop_remainder=True).prefetch(2).with_options(options)


def strategy_of(*, mirrored: bool) -> tf.distribute.Strategy:
    """That of a cluster if this process is in one."""
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if mirrored:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf.distribute.get_strategy()


def arrays(batches: int) -> dict[str, Any]:
    """Images of which three epochs have at least so many batches, for fit."""
    images = np.random.default_rng(0).random((-(-batches // EPOCHS) * BATCH, SIZE, SIZE, 3), np.float32)
    return {"x": images, "y": np.arange(len(images)) % 10, "batch_size": BATCH, "epochs": EPOCHS}


def main(folder: str, way: str, batches: int, after: int, which: str, *options: str) -> None:
    keras.utils.set_random_seed(1)
    endless = "--endless" in options
    worker = int(json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0))
    strategy = strategy_of(mirrored="--mirrored" in options)
    connected = time.time()
    with strategy.scope():
        trained = small_model() if endless else model()
    given = {"x": data(way, batches + after, endless=endless), "shuffle": False}
    if way == ARRAYS:
        given = arrays(batches + after)
    elif endless:
        given["steps_per_epoch"] = batches + after
    slow = [Slow()] if endless and way == STATE else []
    new = TimedNew()
    build, made = Timed(backend(), "trace"), Timed(inputs, "Input")
    before, behind = Journal(), Journal()
    callbacks = [*slow, before, PreemptionCallback(folder), behind]
    pipeline = Path(folder, f"pipeline-{worker}.json")
    if which == "first":
        if worker == 0:
            callbacks.append(Preemption(batches))
        try:
            trained.fit(**given, verbose=0, callbacks=callbacks)
        finally:
            pipeline.write_text(json.dumps(new.seconds[0]))
        raise SystemExit("Expected to be preempted before the epoch was over.")
    trained.fit(**given, verbose=0, callbacks=callbacks)
    times = {
        "started": STARTED,
        "imported": IMPORTED,
        "connected": connected,
        "fit_began": before.fit_began,
        "built_in_fit": build.seconds,
        "input_restored_in": made.result.seconds,
        "how": made.result.how,
        "restored": behind.fit_began,
        "batches": behind.steps_before,
        "steps": behind.steps,
        "pipeline": json.loads(pipeline.read_text()),
    }
    Path(folder, f"journal-{worker}.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
