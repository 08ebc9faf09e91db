"""Reads handwritten digits in a custom training loop, which can be preempted at any moment.

It runs on one device and on several workers::

    python examples/custom_loop.py runs/loop
    keras-preempt run --workers 2 -- python examples/custom_loop.py runs/loop

Send it SIGTERM, start it again with the same arguments, and it continues with the next step. A loop written for
`tf.distribute.experimental.PreemptionCheckpointHandler` needs only a different import: with ``--tensorflow``
this one is run by that class. ``--api`` chooses one of the three ways in which TensorFlow documents it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

from keras_preempt import PreemptionCheckpointHandler

EPOCHS, STEPS, BATCH = 4, 40, 32


def make_dataset() -> tf.data.Dataset:
    digits = sklearn.datasets.load_digits()
    images = (digits.images / 16).astype(np.float32).reshape(-1, 64)
    data = tf.data.Dataset.from_tensor_slices((images, digits.target.astype(np.int32)))
    by_element = tf.data.Options()
    by_element.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.batch(BATCH, drop_remainder=True).take(STEPS).with_options(by_element)


class Training:
    """A model with all that is saved of it.

    Args:
        directory: Where the checkpoints are; all workers must share it.
        strategy: On what to train.
        handler_class: `PreemptionCheckpointHandler`, of this package or of TensorFlow.
        termination_config: What the handler is given as such.
    """

    def __init__(
        self,
        directory: str,
        strategy: tf.distribute.Strategy,
        handler_class: Any,
        termination_config: Any = None,
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
            )
            self.optimizer = keras.optimizers.Adam(0.003)
            self.optimizer.build(self.model.trainable_variables)
            self.epoch = tf.Variable(0, dtype=tf.int64, name="epoch")
            self.step_in_epoch = tf.Variable(0, dtype=tf.int64, name="step_in_epoch")
            checkpoint = tf.train.Checkpoint(
                model=self.model, optimizer=self.optimizer, epoch=self.epoch, step_in_epoch=self.step_in_epoch
            )
            resolver = getattr(strategy, "cluster_resolver", None)
            self.handler = handler_class(
                resolver, checkpoint, directory, termination_config=termination_config
            )

    @tf.function
    def train_step(self, iterator: Iterator[Any]) -> tf.Tensor:
        """Trains on the next batch; returns its loss."""

        def in_replica(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            images, labels = batch
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(
                    labels, self.model(images, training=True), from_logits=True
                )
                loss = tf.reduce_sum(losses) / BATCH
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            context = tf.distribute.get_replica_context()
            if context.num_replicas_in_sync > 1:
                gradients = context.all_reduce("SUM", gradients)
            # The sums are already the same on all replicas.
            self.optimizer.apply(gradients, variables)
            return loss

        losses = self.strategy.run(in_replica, args=(next(iterator),))
        return self.strategy.reduce("SUM", losses, axis=None)

    def run_epoch(self, api: str) -> float:
        """Trains what is left of an epoch."""
        epoch, done = int(self.epoch.numpy()), int(self.step_in_epoch.numpy())
        # A new order of the batches in each epoch, and the same one when the rest of that epoch is trained.
        data = make_dataset().shuffle(STEPS, seed=epoch, reshuffle_each_iteration=False).skip(done)
        iterator = iter(self.strategy.experimental_distribute_dataset(data))
        loss = 0.0
        for _ in range(done, STEPS):
            if api == "save":
                loss = self.train_step(iterator)
                self.step_in_epoch.assign_add(1)
                self.handler.save_checkpoint_if_preempted()
            else:
                # The iterator and not a batch of it, which would be lost if the handler exits instead.
                loss = self.handler.run(self.train_step, iterator)
                self.step_in_epoch.assign_add(1)
        return float(loss)

    def run(self, api: str) -> float:
        """Trains to the end, in one of the ways "run", "save" and "scope"."""
        if api == "scope":
            with self.handler.watch_preemption_scope():
                return self._run(api)
        return self._run(api)

    def _run(self, api: str) -> float:
        loss = 0.0
        while int(self.epoch.numpy()) < EPOCHS:
            loss = self.run_epoch(api)
            self.epoch.assign_add(1)
            self.step_in_epoch.assign(0)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the checkpoints are; all workers must share it")
    parser.add_argument("--api", choices=["run", "save", "scope"], default="run")
    parser.add_argument("--tensorflow", action="store_true", help="use TensorFlow's own class")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    clustered = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if clustered else tf.distribute.get_strategy()
    theirs = tf.distribute.experimental.PreemptionCheckpointHandler
    training = Training(
        arguments.directory, strategy, theirs if arguments.tensorflow else PreemptionCheckpointHandler
    )
    print(f"starting in epoch {int(training.epoch.numpy())} at step {int(training.step_in_epoch.numpy())}")
    loss = training.run(arguments.api)
    print(f"loss: {loss:.6f}, weights: {float(tf.reduce_sum(training.model.trainable_variables[0])):.9f}")


if __name__ == "__main__":
    main()
