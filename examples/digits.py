"""Reads handwritten digits: a training script that can be preempted at any moment.

It runs unchanged on one device, on several devices of one machine, and on several machines::

    python examples/digits.py runs/digits
    python examples/digits.py runs/digits --strategy mirrored --devices 2
    keras-preempt run --workers 2 -- python examples/digits.py runs/digits

and all of that on TensorFlow or, with KERAS_BACKEND=jax in the environment, on JAX, which needs no TensorFlow; in one
process on one device also with KERAS_BACKEND=torch, which needs neither.
Send it SIGTERM, start it again with the same arguments, and it continues with the next batch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any, NamedTuple

import keras
import numpy as np
import sklearn.datasets

import keras_preempt


class Job(NamedTuple):
    """How this process trains: where the model is made, and which part of the data it has to bring."""

    scope: contextlib.AbstractContextManager[Any]
    first: bool  # Of all processes: the one that prints.
    part: int = 0
    parts: int = 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the checkpoints are; all workers must share it")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of all devices together")
    parser.add_argument("--strategy", choices=["auto", "mirrored"], default="auto")
    parser.add_argument("--devices", type=int, default=2, help="of --strategy mirrored")
    return parser.parse_args()


def start(strategy: str = "auto", devices: int = 1) -> Job:
    """Before anything else: finds the devices and the other workers. The launcher has told each its number."""
    keras.utils.set_random_seed(1)  # Repeatable weights, order of the data, dropout and augmentation.
    begin = {"tensorflow": start_tensorflow, "jax": start_jax, "torch": start_torch}[keras.backend.backend()]
    return begin(strategy == "mirrored", devices)


def start_tensorflow(mirrored: bool, devices: int) -> Job:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()  # Repeatable sums, also on a GPU.
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif not mirrored:
        strategy = tf.distribute.get_strategy()
    elif gpus := tf.config.list_physical_devices("GPU"):
        strategy = tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(len(gpus[:devices]))])
    else:  # The CPU can stand in for several devices, before TensorFlow starts to use it.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)])
    return Job(strategy.scope(), strategy.extended.should_checkpoint)  # It divides the data itself.


def start_jax(mirrored: bool, devices: int) -> Job:
    import jax

    if mirrored:  # The CPU can stand in for several devices, before JAX starts to use it.
        jax.config.update("jax_num_cpu_devices", devices)
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        keras.distribution.initialize()
    if mirrored or jax.process_count() > 1:
        found = keras.distribution.list_devices()[: devices if mirrored else None]
        data_parallel = keras.distribution.DataParallel(devices=found, auto_shard_dataset=False)
        keras.distribution.set_distribution(data_parallel)
    return Job(contextlib.nullcontext(), jax.process_index() == 0, jax.process_index(), jax.process_count())


def start_torch(mirrored: bool, devices: int) -> Job:
    import torch

    if mirrored:
        raise SystemExit("On torch, one process trains on one device.")
    torch.use_deterministic_algorithms(True)  # Repeatable sums, also on a GPU; see docs/torch.md.
    return Job(contextlib.nullcontext(), first=True)


def load_data(batch_size: int, job: Job) -> dict[str, Any]:
    """What fit is to learn from: 1,797 real digits of 8x8 pixels, a fifth of them for validation."""
    digits = sklearn.datasets.load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int32)

    def share(samples: slice) -> tuple[np.ndarray, np.ndarray]:
        # Whole batches only, which the devices can divide, and of each batch the part of this process.
        whole = len(images[samples]) // batch_size * batch_size
        return tuple(each[samples][:whole][job.part :: job.parts] for each in (images, labels))

    held_out = len(images) // 5
    x, y = share(slice(held_out, None))
    return {
        "x": x,
        "y": y,
        "batch_size": batch_size // job.parts,
        "validation_data": share(slice(held_out)),
    }


def make_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1),
            layers.RandomRotation(0.03),
            layers.Conv2D(16, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    job = start(arguments.strategy, arguments.devices)
    with job.scope:
        model = make_model()
        model.compile(
            optimizer=keras.optimizers.Adam(4e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        **load_data(arguments.batch_size, job),
        epochs=arguments.epochs,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.01),
            keras_preempt.PreemptionCallback(arguments.directory),
        ],
        verbose=2 if job.first else 0,
    )
    if job.first:
        print(f"validation accuracy: {history.history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
