"""The JAX backend behind `keras_preempt.backend.seam.Backend`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend import seam, seam_of_input
from keras_preempt.backend.determinism import OF_JAX
from keras_preempt.backend.jax import (
    datasets,
    description,
    distributed,
    errors,
    feed,
    first_use,
    place,
    reshuffling,
    running_fit,
    step,
    variables,
)
from keras_preempt.backend.jax.coordination import JaxCoordinator
from keras_preempt.backend.place import Place
from keras_preempt.checkpoint.exchange import Gather


class NothingRepaired:
    """What Keras does not do right on JAX is avoided where a fit begins; nothing of Keras is replaced."""

    def undo(self) -> None:
        """Does nothing."""


class JaxBackend:
    """What JAX does for each name of `seam.Backend`, where its meaning is documented."""

    variables: seam.Variables = variables
    datasets: seam_of_input.Datasets = datasets
    reshuffling: seam_of_input.Reshuffling = reshuffling
    errors: seam.Errors = errors

    repair = staticmethod(NothingRepaired)
    strategy_of = staticmethod(place.strategy_of)
    replicas = staticmethod(place.replicas)
    layout = staticmethod(place.layout)
    place_of_loop = staticmethod(place.place_of_loop)
    in_a_cluster = staticmethod(place.in_a_cluster)
    job = staticmethod(place.job)
    remote_workers = staticmethod(place.remote_workers)
    place = staticmethod(place.place)
    running_fit = staticmethod(running_fit.running_fit)
    feed = staticmethod(feed.JaxFeed)
    trace = staticmethod(step.trace)
    traced_validation = staticmethod(step.traced_validation)
    validation_may_draw = staticmethod(step.validation_may_draw)
    stateful_random_operations = staticmethod(step.stateful_random_operations)
    watch_first_use = staticmethod(first_use.FirstUse)
    leave_together = staticmethod(distributed.leave_together)
    tell_end = staticmethod(distributed.tell_end)
    leave_refused = staticmethod(distributed.leave_refused)
    described = staticmethod(description.described)
    early_notice = staticmethod(distributed.early_notice)
    hears_by_key = False
    runs_ahead = True

    def versions(self) -> dict[str, str]:
        """See `seam.Backend.versions`."""
        return {
            "keras": keras.__version__,
            "jax": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
        }

    def replicas_differ(self, strategy: Any) -> bool:
        """Returns False: a variable has one value, wherever its parts are."""
        return False

    def unordered_sums(self) -> str:
        """See `seam.Backend.unordered_sums`."""
        has_gpu = any(device.platform == "gpu" for device in jax.local_devices())
        return OF_JAX.cure if has_gpu and not OF_JAX.is_set else ""

    def coordinator(self, place: Place) -> Coordinator:
        """See `seam.Backend.coordinator`."""
        if place.members == 1:
            distributed.leave_service_last()
            return LocalCoordinator()
        distributed.leave_in_order()
        return JaxCoordinator(place.member, place.members)

    def gather(self, place: Place, patience: float) -> Gather | None:
        """Returns None: each process reads a checkpoint by itself."""
        return None

    def notice_keys(self) -> Coordinator:
        """See `seam.Backend.notice_keys`."""
        return JaxCoordinator(0, 1)

    def tap(self, distributed: Any) -> None:
        """Returns None: no strategy of JAX cuts batches."""

    def before_capture(self, model: Any) -> None:
        """See `seam.Backend.before_capture`: between two steps of an epoch the variables hold nothing."""
        model.jax_state_sync()

    def summary_writer(self, callback: Any) -> Any:
        """See `seam.Backend.summary_writer`."""
        return datasets.of_tensorflow("summaries").summary_writer(callback)

    def write_points(self, writer: Any, values: Mapping[str, float], step: int) -> None:
        """See `seam.Backend.write_points`."""
        datasets.of_tensorflow("summaries").write_points(writer, values, step)


BACKEND: seam.Backend = JaxBackend()
