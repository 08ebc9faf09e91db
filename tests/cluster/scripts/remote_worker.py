"""A worker process as a TPU has them: a server that computes what the coordinator says, until it is killed."""

from __future__ import annotations

import json
import os
import threading

config = json.loads(os.environ.pop("TF_CONFIG"))

import tensorflow as tf  # noqa: E402  it would read the variable

server = tf.distribute.Server(
    tf.train.ClusterSpec(config["cluster"]),
    job_name="worker",
    task_index=config["task"]["index"],
    protocol="grpc",
)
print("SERVES", flush=True)
threading.Event().wait()
