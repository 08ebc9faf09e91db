"""Trains on a Cloud TPU whose workers can be taken away, and continues in the same process when they are back.

    python examples/tpu_loop.py gs://bucket/runs/1 --tpu my-tpu

One process, the coordinator, runs the program; the workers compute. When a worker is preempted, the callback saves a
checkpoint and raises `Preempted`. The loop then waits for the workers to leave, connects to the new ones, builds the
model again, and `fit` continues with the next batch.

With ``--once`` the process exits instead, with status 42, so that a script starts it again, as in examples/tpu_vm.
"""

from __future__ import annotations

import argparse

import keras
import tensorflow as tf

from keras_preempt import PreemptionCallback, PreemptionWatcher, TerminationConfig

EPOCHS, STEPS, BATCH = 20, 200, 128


def connect(tpu: str) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def make_data() -> tf.data.Dataset:
    x = tf.random.stateless_uniform((STEPS * BATCH, 64), seed=(1, 2))
    y = tf.cast(tf.reduce_sum(x, axis=1) > 32.0, tf.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(STEPS * BATCH, seed=3)
    return data.batch(BATCH, drop_remainder=True).prefetch(2)


def train(
    strategy: tf.distribute.Strategy, directory: str, termination: TerminationConfig | None = None
) -> None:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(256, "relu"),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(2),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=50)
    # An exit_fn that returns: fit raises Preempted instead of ending the process.
    termination = termination or TerminationConfig(exit_fn=lambda: None)
    model.fit(make_data(), epochs=EPOCHS, callbacks=[PreemptionCallback(directory, termination=termination)])


def main(directory: str, tpu: str) -> None:
    while True:
        # Objects of workers that are gone are deleted before others are connected; after that TensorFlow could no
        # longer remove them. The automatic names of layers start again, too.
        keras.utils.clear_session()
        strategy = connect(tpu)
        with PreemptionWatcher() as watcher:
            try:
                train(strategy, directory)
                return
            except (
                Exception
            ) as error:  # Preempted, or the error that the loss of a worker causes if it comes first.
                if watcher.preemption_message is None:
                    raise
                print(f"{watcher.preemption_message} was preempted: {error}", flush=True)
        del strategy
        watcher.block_until_worker_exit(timeout=600)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the checkpoints are, such as gs://bucket/runs/1")
    parser.add_argument("--tpu", default="", help="the name of the TPU; empty for the one of this machine")
    parser.add_argument("--once", action="store_true", help="exit with status 42 when a worker is preempted")
    arguments = parser.parse_args()
    if arguments.once:
        train(connect(arguments.tpu), arguments.directory, TerminationConfig())
    else:
        main(arguments.directory, arguments.tpu)
