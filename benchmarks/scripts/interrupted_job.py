"""The job of `what_is_lost.py`: a training of two epochs that is told to leave in the second, and is started again.

Run as: FOLDER CONTESTANT [UPDATES]. In the step after so many updates it prints `READY` and waits for a line of
standard input, so that the signal comes at the same moment in every contestant. Each step is noted in FOLDER as it
begins.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Nothing listens here: on a Google machine without a GPU TensorFlow's handler would only pass calls through.
os.environ["GCE_METADATA_IP"] = "127.0.0.1:9"

import keras
import numpy as np
import tensorflow as tf

EPOCHS, STEPS, BATCH = 2, 40, 16
SAVE_EVERY = 10  # steps, for what saves every so many of them
SAMPLES = STEPS * BATCH


@keras.saving.register_keras_serializable("benchmarks")
class Noted(keras.Sequential):  # type: ignore[misc]
    """A model that notes, in every step, how many updates there were and which samples it gets."""

    note: Callable[[Any, Any], Any]

    def train_step(self, data: Any) -> Any:
        """Notes the step, then does what Keras does."""
        x, y = data
        updates = tf.cast(self.optimizer.iterations.value, tf.int64)
        (noted,) = tf.numpy_function(Noted.note, [updates, x[:, 0]], [tf.float32], stateful=True)
        with tf.control_dependencies([noted]):
            return super().train_step((tf.identity(x), y))


def noting(folder: Path, wait_at: int | None) -> Callable[[Any, Any], Any]:
    """Returns the function that notes a step in the next free file of the folder."""
    steps = folder / f"steps-{len(list(folder.glob('steps-*')))}.jsonl"
    steps.touch()

    def note(updates: Any, samples: Any) -> Any:
        with steps.open("a") as stream:
            step = {"updates": int(updates), "samples": [int(each) for each in samples], "at": time.time()}
            stream.write(json.dumps(step) + "\n")
        if int(updates) == wait_at:
            print("READY", flush=True)
            sys.stdin.readline()
        return np.float32(0)

    return note


def model() -> Any:
    """Returns a small network with a random layer."""
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    made = Noted([keras.Input((4,)), *layers])
    made.compile("adam", "mse", jit_compile=False)
    return made


def data() -> Any:
    """Returns the batches of an epoch, in another order each time; the first feature is the sample's number."""
    x = np.random.default_rng(0).random((SAMPLES, 4), dtype=np.float32)
    x[:, 0] = np.arange(SAMPLES)
    return tf.data.Dataset.from_tensor_slices((x, x[:, 1:2])).shuffle(SAMPLES).batch(BATCH)


def fit(*callbacks: Any) -> Any:
    """Trains with these callbacks."""
    trained = model()
    trained.fit(data(), epochs=EPOCHS, verbose=0, callbacks=list(callbacks))
    return trained


def alone(folder: str) -> Any:
    """`fit` without anything that saves."""
    return fit()


def ours(folder: str) -> Any:
    """`fit` with the callback of this package."""
    from keras_preempt import PreemptionCallback

    return fit(PreemptionCallback(folder))


def backup(folder: str) -> Any:
    """`fit` with Keras' callback, as it is by default."""
    return fit(keras.callbacks.BackupAndRestore(folder))


def backup_in_epoch(folder: str) -> Any:
    """`fit` with Keras' callback, saving within the epoch."""
    return fit(keras.callbacks.BackupAndRestore(folder, save_freq=SAVE_EVERY))


def orbax(folder: str) -> Any:
    """`fit` with Keras' callback for Orbax; starting again from its checkpoint is left to the program."""
    trained = keras.saving.load_model(folder) if Path(folder).exists() else model()
    callback = keras.callbacks.OrbaxCheckpoint(folder, save_on_background=False)
    begin = int(trained.optimizer.iterations) // STEPS
    trained.fit(data(), epochs=EPOCHS, initial_epoch=begin, verbose=0, callbacks=[callback])
    return trained


def loop(folder: str | None, keep_iterator: bool = False) -> Any:
    """The training loop of the documentation of TensorFlow's handler, without the handler if there is no folder."""
    strategy = tf.distribute.get_strategy()
    trained = model()
    trained.optimizer.build(trained.trainable_variables)
    epoch, step_in_epoch = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    iterator = iter(data().repeat())
    kept = {"iterator": iterator} if keep_iterator else {}
    run: Callable[..., Any] = lambda function, argument: function(argument)  # noqa: E731
    if folder is not None:
        checkpoint = tf.train.Checkpoint(
            model=trained, optimizer=trained.optimizer, epoch=epoch, step_in_epoch=step_in_epoch, **kept
        )
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
        run = tf.distribute.experimental.PreemptionCheckpointHandler(resolver, checkpoint, folder).run

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: Any) -> Any:
        return strategy.run(trained.train_step, args=(batch,))

    def step(from_iterator: Iterator[Any]) -> Any:
        return train_step(next(from_iterator))

    while epoch < EPOCHS:
        while step_in_epoch < STEPS:
            # With the iterator in the checkpoint a batch must not be drawn before the handler has looked for a notice.
            if keep_iterator:
                run(step, iterator)
            else:
                run(train_step, next(iterator))
            step_in_epoch.assign_add(1)
        epoch.assign_add(1)
        step_in_epoch.assign(0)
    return trained


def loop_alone(folder: str) -> Any:
    """The loop without anything that saves."""
    return loop(None)


def handler(folder: str) -> Any:
    """The loop with TensorFlow's handler, as its documentation has it."""
    return loop(folder)


def handler_with_iterator(folder: str) -> Any:
    """The same, with the iterator in the checkpoint."""
    return loop(folder, keep_iterator=True)


CONTESTANTS = (alone, ours, backup, backup_in_epoch, orbax, loop_alone, handler, handler_with_iterator)


def main(folder: str, contestant: str, wait_at: int | None) -> None:
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    Noted.note = staticmethod(noting(Path(folder), wait_at))
    trained = {each.__name__: each for each in CONTESTANTS}[contestant](str(Path(folder, "saved")))
    values = [variable.numpy() for variable in (*trained.variables, *trained.optimizer.variables)]
    np.savez(Path(folder, "end.npz"), *values)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
