"""Reads handwritten digits: a training script that can be preempted at any moment.

It runs unchanged on one device, on several devices of one machine, and on several machines::

    python examples/digits.py runs/digits
    python examples/digits.py runs/digits --strategy mirrored --devices 2
    keras-preempt run --workers 2 -- python examples/digits.py runs/digits

Send it SIGTERM, start it again with the same arguments, and it continues with the next batch.
"""

from __future__ import annotations

import argparse
import os

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import keras_preempt


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the checkpoints are; all workers must share it")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of all devices together")
    parser.add_argument("--strategy", choices=["auto", "mirrored"], default="auto")
    parser.add_argument("--devices", type=int, default=2, help="of --strategy mirrored")
    return parser.parse_args()


def make_strategy(name: str, devices: int) -> tf.distribute.Strategy:
    if "TF_CONFIG" in os.environ:  # Several workers: the launcher has told each its number.
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "auto":
        return tf.distribute.get_strategy()
    if gpus := tf.config.list_logical_devices("GPU"):
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus[:devices]])
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)])


def split_cpu(devices: int) -> None:
    """Without GPUs, the CPU can stand in for several devices; only before TensorFlow starts to use it."""
    if not tf.config.list_physical_devices("GPU"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def make_datasets(batch_size: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """1,797 real digits of 8x8 pixels, a fifth of them for validation."""
    digits = sklearn.datasets.load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    held_out = len(images) // 5
    train = tf.data.Dataset.from_tensor_slices((images[held_out:], labels[held_out:]))
    validation = tf.data.Dataset.from_tensor_slices((images[:held_out], labels[:held_out]))
    # The seed makes the order repeatable, which a resume on several replicas needs; it also lets all
    # workers shuffle in the same order, so that each can take its own share of every batch.
    train = train.shuffle(len(train), seed=1).batch(batch_size, drop_remainder=True)
    validation = validation.batch(batch_size, drop_remainder=True)
    by_element = tf.data.Options()
    by_element.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return train.with_options(by_element).prefetch(2), validation.with_options(by_element).prefetch(2)


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
    keras.utils.set_random_seed(1)  # Repeatable weights, dropout and augmentation,
    tf.config.experimental.enable_op_determinism()  # and, also on a GPU, repeatable sums.
    if arguments.strategy == "mirrored":
        split_cpu(arguments.devices)
    strategy = make_strategy(arguments.strategy, arguments.devices)  # Before anything else of TensorFlow.
    with strategy.scope():
        model = make_model()
        model.compile(
            optimizer=keras.optimizers.Adam(4e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    train, validation = make_datasets(arguments.batch_size)
    first_worker = strategy.extended.should_checkpoint  # True for one worker, or without a cluster.
    history = model.fit(
        train,
        epochs=arguments.epochs,
        validation_data=validation,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.01),
            keras_preempt.PreemptionCallback(arguments.directory),
        ],
        shuffle=False,  # The dataset shuffles.
        verbose=2 if first_worker else 0,
    )
    if first_worker:
        print(f"validation accuracy: {history.history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
