"""A small training run that leaves everything it ended with in a file, for bit-by-bit comparison.

Run as: train.py OUTPUT DIRECTORY [--strategy one|mirrored|mwms] [--data finite|repeat] ...
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
from typing import Any

import numpy as np

EPOCHS, STEPS, BATCH = 3, 6, 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("directory")
    parser.add_argument("--strategy", default="one", choices=["one", "mirrored", "mwms"])
    parser.add_argument("--data", default="finite", choices=["finite", "repeat", "unknown"])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--spe", type=int, default=1)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--no-validation", action="store_true")
    parser.add_argument("--stop-early", action="store_true")
    parser.add_argument("--marks", action="store_true", help="print a line at every hook")
    parser.add_argument(
        "--mark-saves", action="store_true", help="print a line in every save, and stay there"
    )
    parser.add_argument("--slow", type=float, default=0.0, help="seconds each training step takes longer")
    parser.add_argument("--save-every", help="a number of steps, 'epoch' or a time")
    parser.add_argument("--memory-every", help="a number of steps, 'auto' or a time")
    parser.add_argument("--memory-dir", default="/dev/shm")
    parser.add_argument("--save-on-request", default="auto", help="how often to look for requests")
    parser.add_argument("--grace", type=float, help="seconds of the grace period")
    parser.add_argument("--time-limit", default="auto", help="of this process")
    parser.add_argument("--snapshots", type=int, help="take one of the input each so many steps")
    parser.add_argument("--no-snapshots", action="store_true", help="as a release that knows none")
    parser.add_argument("--plain", action="store_true", help="without the PreemptionCallback")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes of the data, on torch")
    parser.add_argument("--validation-workers", type=int, default=0, help="those of the validation data")
    return parser.parse_args()


ARGS = arguments()
ON_TORCH = os.environ.get("KERAS_BACKEND") == "torch"
if ON_TORCH:
    import on_torch

    STRATEGY = on_torch.Alone()
else:
    import tensorflow as tf
    from strategies import make_strategy

    # What is run so seldom trains sooner as it is than better.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    STRATEGY = make_strategy(ARGS.strategy)

import keras  # noqa: E402  the strategy comes first
from marks import MEMBER, Marks  # noqa: E402

import keras_preempt  # noqa: E402
from keras_preempt.training.save.snapshots import SnapshotSchedule  # noqa: E402
from tests.fits import untuned  # noqa: E402

if ARGS.no_snapshots:
    from keras_preempt.backend.tensorflow.backend import TensorFlowBackend

    TensorFlowBackend.tap = staticmethod(lambda distributed: None)
if ARGS.snapshots:  # Not by the clock, so that it is known which one serves.
    SnapshotSchedule.left = property(lambda schedule: 0.0)
    SnapshotSchedule.boundaries_left = lambda schedule, entered: ARGS.snapshots


def make_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(STEPS * BATCH, 8, 8, 1)).astype("float32")
    y = rng.integers(0, 3, size=STEPS * BATCH).astype("int32")
    if ON_TORCH:
        return on_torch.make_data(x, y, ARGS.batch, ARGS.loader_workers, ARGS.validation_workers)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=5)
    if ARGS.data == "repeat":
        train = train.repeat()
    if ARGS.data == "unknown":
        train = train.filter(lambda a, b: True)
    train = train.batch(ARGS.batch, drop_remainder=True).prefetch(2)
    val = (
        tf.data.Dataset.from_tensor_slices((x[:32], y[:32]))
        .shuffle(32, seed=9)
        .batch(ARGS.batch, drop_remainder=True)
    )
    return untuned(train), untuned(val)


def make_model() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    h = layers.RandomTranslation(0.1, 0.1, seed=3)(inputs)
    h = layers.Conv2D(4, 3)(h)
    h = layers.BatchNormalization()(h)
    h = layers.Flatten()(layers.ReLU()(h))
    h = layers.Dropout(0.3)(h)
    return keras.Model(inputs, layers.Dense(3)(h))


def values(variable, strategy) -> list[np.ndarray]:
    return [np.asarray(part) for part in strategy.experimental_local_results(variable.value)]


def main() -> None:
    keras.utils.set_random_seed(11)
    train, val = make_data()
    marks = Marks(ARGS.directory, ARGS.marks, ARGS.slow)
    if ARGS.mark_saves:
        marks.mark_saves()
    with STRATEGY.scope():
        model = make_model()
        loss_of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def loss(y, logits):
            marks.tracing()
            return loss_of_logits(y, logits)

        model.compile(
            optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
            loss=loss_of_logits if ON_TORCH else loss,  # Nothing is traced there.
            metrics=["accuracy"],
            steps_per_execution=ARGS.spe,
        )
    early = keras.callbacks.EarlyStopping(
        patience=1 if ARGS.stop_early else 20,
        min_delta=0.5 if ARGS.stop_early else 0,
        restore_best_weights=True,
    )
    plateau = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.2, cooldown=1)
    callbacks = [marks, early]
    save_every = int(ARGS.save_every) if (ARGS.save_every or "").isdigit() else ARGS.save_every
    if not ARGS.plain:
        termination = keras_preempt.TerminationConfig(grace_period=ARGS.grace, time_limit=ARGS.time_limit)
        callbacks.append(
            keras_preempt.PreemptionCallback(
                ARGS.directory,
                termination=termination,
                save_every=save_every,
                save_on_request=ARGS.save_on_request,
                memory_every=int(ARGS.memory_every)
                if (ARGS.memory_every or "").isdigit()
                else ARGS.memory_every,
                memory_dir=ARGS.memory_dir,
            )
        )
    callbacks.append(plateau)
    history = model.fit(
        train,
        epochs=ARGS.epochs,
        steps_per_epoch=STEPS if ARGS.data == "repeat" else None,
        validation_data=None if ARGS.no_validation else val,
        callbacks=callbacks,
        verbose=0,
    )
    arrays = {}
    for group in (model.variables, model.optimizer.variables, model.metrics_variables):
        for number, variable in enumerate(group):
            for replica, value in enumerate(values(variable, STRATEGY)):
                arrays[f"{variable.path}.{number}@{replica}"] = value
    arrays["best"] = np.concatenate([np.ravel(value) for value in early.best_weights or [np.zeros(1)]])
    arrays["python, numpy"] = np.array([random.random(), np.random.rand()])
    arrays["keras"] = np.asarray(keras.random.uniform((4,)))
    record = {
        "history": history.history,
        "epochs": history.epoch,
        "early": [early.wait, early.stopped_epoch, early.best, early.best_epoch],
        "plateau": [plateau.wait, plateau.best, plateau.cooldown_counter],
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("keras_preempt")),
    }
    np.savez(f"{ARGS.output}.{MEMBER}.npz", **arrays)
    with open(f"{ARGS.output}.{MEMBER}.json", "w") as stream:
        json.dump(record, stream, sort_keys=True)
    print("FINISHED", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
