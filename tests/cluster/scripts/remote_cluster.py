"""Connects a coordinator to remote workers, as one does to a TPU."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

import tensorflow as tf

from keras_preempt import PreemptionWatcher
from tests.cluster.small_fit import await_


class CloudTpuLike(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """What makes TensorFlow start a coordination service on the workers, as for a TPUClusterResolver."""

    tpu_hardware_feature = None

    def get_coordination_service_leader(self):
        return "/job:worker/replica:0/task:0"


def connect_to_workers(folder: Path, number: int) -> CloudTpuLike:
    """Waits for the set of workers of that number to tell their addresses, and connects to them."""
    path = folder / f"workers-{number}.json"
    await_(path.exists, 60, "no workers came")
    addresses = json.loads(path.read_text())
    spec = tf.train.ClusterSpec({"worker": addresses})
    resolver = CloudTpuLike(spec, master=f"grpc://{addresses[0]}", environment="")
    tf.config.experimental_connect_to_cluster(resolver, job_name="coordinator")
    return resolver


class Notice(logging.Handler):
    """Waits for the notice of a worker, made before it can come: until everyone who listens here has heard it.

    A watcher of the program and the listener of the package hear the same key, one of them a moment later.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged = threading.Event()
        logging.getLogger("keras_preempt").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "is about to be ended" in record.getMessage():
            self._logged.set()

    def wait(self) -> None:
        print("HOLDS", flush=True)
        limit = time.monotonic() + 60
        with PreemptionWatcher() as watcher:
            while watcher.preemption_message is None:
                assert time.monotonic() < limit, "no notice came"
                time.sleep(0.02)
        assert self._logged.wait(limit - time.monotonic()), "the package did not hear the notice"
