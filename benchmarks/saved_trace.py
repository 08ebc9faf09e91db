"""What a saved trace of the train step could bring on TensorFlow: tracing it, beside loading the same graph from bytes.

Loading is the least that a saved trace costs: its variables would have to be bound as well, and everything that the
step consists of (Keras, the model's code, its settings) would have to be the same, which nothing can tell.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from figures import conditions, table


def model(layers: int) -> keras.Model:
    made = keras.Sequential([keras.Input((32,)), *(keras.layers.Dense(32, "relu") for _ in range(layers))])
    made.compile(optimizer=keras.optimizers.Adam(), loss="mse")
    return made


def measure(layers: int) -> tuple[float, float, float]:
    """Returns the seconds of a trace, those of loading its graph, and how many operations the graph has."""
    trained = model(layers)
    trained.optimizer.build(trained.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices((np.zeros((64, 32), np.float32),) * 2).batch(32)
    step = tf.function(trained.train_step, reduce_retracing=True)
    spec = tuple(tf.TensorSpec((None, 32), tf.float32) for _ in data.element_spec)
    began = time.perf_counter()
    traced = step.get_concrete_function(spec)
    seconds = time.perf_counter() - began
    saved = traced.graph.as_graph_def().SerializeToString()
    began = time.perf_counter()
    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(saved)
    with tf.Graph().as_default():
        tf.import_graph_def(graph, name="")
    return seconds, time.perf_counter() - began, len(graph.node)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"{conditions()}.\n")
    measure(2)  # What TensorFlow does once.
    rows = []
    for layers in (4, 40):
        runs = [measure(layers) for _ in range(options.runs)]
        trace, load, operations = (statistics.median(column) for column in zip(*runs, strict=True))
        rows.append([f"{layers} dense layers", f"{operations:.0f}", f"{trace:.2f}", f"{load:.2f}"])
    print(table(["seconds, medians", "operations", "trace", "load the graph"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
