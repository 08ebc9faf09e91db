"""The TensorFlow backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend import seam
from keras_preempt.backend.determinism import OF_TENSORFLOW
from keras_preempt.backend.keras.first_use import FirstUse
from keras_preempt.backend.place import Place
from keras_preempt.backend.tensorflow import collectives, coordination, multi_worker_fit
from keras_preempt.backend.tensorflow import place as places
from keras_preempt.backend.tensorflow.errors import TensorFlowErrors
from keras_preempt.backend.tensorflow.feed import DatasetFeed
from keras_preempt.backend.tensorflow.tap import tap_of
from keras_preempt.backend.tensorflow.traced_step import (
    trace,
    traced_validation,
    validation_may_draw,
)
from keras_preempt.backend.tensorflow.variables import TensorFlowVariables
from keras_preempt.backend.versions import UnsupportedTensorFlow
from keras_preempt.checkpoint.exchange import Gather


class TensorFlowBackend(seam.Backend):
    """Where TensorFlow differs from one process that trains by itself; see `seam.Backend`."""

    name = "TensorFlow"
    variables = TensorFlowVariables()
    errors = TensorFlowErrors()
    reads_together = True
    feed = DatasetFeed
    hears_by_key = True

    in_a_cluster = staticmethod(places.in_a_cluster)
    neighbours = staticmethod(places.neighbours)
    remote_workers = staticmethod(places.connected)
    place = staticmethod(places.place)
    place_of_loop = staticmethod(places.place_of_loop)
    tap = staticmethod(tap_of)
    trace = staticmethod(trace)
    traced_validation = staticmethod(traced_validation)
    validation_may_draw = staticmethod(validation_may_draw)

    def versions(self) -> dict[str, str]:
        return {"keras": keras.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}

    def repair(self) -> Callable[[], None]:
        return multi_worker_fit.enable_multi_worker_fit().undo

    def strategy_of(self, model: Any) -> tf.distribute.Strategy:
        return model.distribute_strategy

    def replicas(self, strategy: tf.distribute.Strategy) -> int:
        return int(strategy.num_replicas_in_sync)

    def replicas_differ(self, strategy: tf.distribute.Strategy) -> bool:
        return bool(strategy.num_replicas_in_sync > 1)

    def unordered_sums(self) -> str:
        if OF_TENSORFLOW.is_set or not tf.config.list_logical_devices("GPU"):
            return ""
        try:
            from tensorflow.python.framework import config

            # Whether the program has called tf.config.experimental.enable_op_determinism().
            return "" if config.is_op_determinism_enabled() else OF_TENSORFLOW.cure
        except (ImportError, AttributeError) as error:
            name = "tensorflow.python.framework.config.is_op_determinism_enabled"
            raise UnsupportedTensorFlow(name) from error

    def coordinator(self, place: Place) -> Coordinator:
        if place.members == 1:
            return LocalCoordinator()
        return coordination.ServiceCoordinator(place.member, place.members, place.jobs)

    def gather(self, place: Place, patience: float) -> Gather | None:
        return collectives.Collectives(place.member, place.members, patience)

    def notice_keys(self) -> Coordinator:
        return coordination.ServiceCoordinator(0, 1)

    def watch_first_use(self, known: Iterable[Any], look: Callable[[Any], bool]) -> Callable[[], None]:
        return FirstUse(known, look, tf.init_scope).stop


BACKEND = TensorFlowBackend()
