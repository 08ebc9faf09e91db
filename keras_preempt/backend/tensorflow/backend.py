"""The TensorFlow backend behind `keras_preempt.backend.seam.Backend`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend import seam, seam_of_input
from keras_preempt.backend.place import Place
from keras_preempt.backend.tensorflow import (
    collectives,
    coordination,
    datasets,
    errors,
    feed,
    first_use,
    multi_worker_fit,
    order_of_sums,
    place,
    reshuffling,
    summaries,
    tap,
    traced_step,
    variables,
)
from keras_preempt.checkpoint.exchange import Gather


class TensorFlowBackend:
    """What TensorFlow does for each name of `seam.Backend`, where its meaning is documented."""

    variables: seam.Variables = variables
    datasets: seam_of_input.Datasets = datasets
    reshuffling: seam_of_input.Reshuffling = reshuffling
    errors: seam.Errors = errors

    unordered_sums = staticmethod(order_of_sums.unordered_sums)
    repair = staticmethod(multi_worker_fit.enable_multi_worker_fit)
    place_of_loop = staticmethod(place.place_of_loop)
    in_a_cluster = staticmethod(place.in_a_cluster)
    job = staticmethod(place.job)
    remote_workers = staticmethod(place.connected)
    place = staticmethod(place.place)
    running_fit = staticmethod(feed.running_fit)
    feed = staticmethod(feed.DatasetFeed)
    tap = staticmethod(tap.tap_of)
    trace = staticmethod(traced_step.trace)
    traced_validation = staticmethod(traced_step.traced_validation)
    validation_may_draw = staticmethod(traced_step.validation_may_draw)
    stateful_random_operations = staticmethod(traced_step.stateful_random_operations)
    watch_first_use = staticmethod(first_use.FirstUse)
    summary_writer = staticmethod(summaries.summary_writer)
    write_points = staticmethod(summaries.write_points)
    hears_by_key = True
    runs_ahead = False

    def versions(self) -> dict[str, str]:
        """See `seam.Backend.versions`."""
        return {"keras": keras.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}

    def strategy_of(self, model: Any) -> tf.distribute.Strategy:
        """See `seam.Backend.strategy_of`."""
        return model.distribute_strategy

    def replicas(self, strategy: tf.distribute.Strategy) -> int:
        """See `seam.Backend.replicas`."""
        return int(strategy.num_replicas_in_sync)

    def replicas_differ(self, strategy: tf.distribute.Strategy) -> bool:
        """See `seam.Backend.replicas_differ`."""
        return self.replicas(strategy) > 1

    def layout(self, strategy: tf.distribute.Strategy) -> str:
        """See `seam.Backend.layout`: every worker holds all of every variable."""
        return ""

    def coordinator(self, place: Place) -> Coordinator:
        """See `seam.Backend.coordinator`."""
        if place.members == 1:
            return LocalCoordinator()
        return coordination.ServiceCoordinator(place.member, place.members, place.jobs)

    def gather(self, place: Place, patience: float) -> Gather | None:
        """See `seam.Backend.gather`."""
        return collectives.Collectives(place.member, place.members, patience)

    def notice_keys(self) -> Coordinator:
        """See `seam.Backend.notice_keys`."""
        return coordination.ServiceCoordinator(0, 1)

    def early_notice(self, timeout: float = 0.0) -> None:
        """Returns None: the key is waited for."""

    def described(self, model: Any) -> str:
        """See `seam.Backend.described`."""
        return str(model.to_json())

    def leave_refused(self) -> None:
        """Does nothing: a worker of TensorFlow ends without the others."""

    def leave_together(self) -> None:
        """Does nothing: a worker of TensorFlow ends without the others."""

    def tell_end(self) -> None:
        """Does nothing: nobody waits for it."""

    def before_capture(self, model: Any) -> None:
        """Does nothing: a step leaves what it has computed in the variables."""


BACKEND: seam.Backend = TensorFlowBackend()
