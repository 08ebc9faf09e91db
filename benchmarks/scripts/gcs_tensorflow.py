"""TensorFlow's own checkpoint on gs://: reads write, read or forget from stdin, and prints the seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf
from bucket_ways import state

size, bucket = int(sys.argv[1]), sys.argv[2]
tensors = {name: tf.Variable(array) for name, array in state(size).items()}
checkpoint = tf.train.Checkpoint(tensors=tensors)
prefix = f"gs://{bucket}/tensorflow/checkpoint"


def write() -> None:
    checkpoint.write(prefix)


def read() -> None:
    checkpoint.read(prefix).assert_consumed()


def forget() -> None:
    tf.io.gfile.rmtree(f"gs://{bucket}/tensorflow")


ORDERS = {"write": write, "read": read, "forget": forget}
print(0.0, flush=True)
for line in sys.stdin:
    begun = time.perf_counter()
    ORDERS[line.strip()]()
    print(time.perf_counter() - begun, flush=True)
