"""The JAX backend."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend import seam
from keras_preempt.backend.describing import described
from keras_preempt.backend.determinism import OF_JAX
from keras_preempt.backend.jax import distributed, place
from keras_preempt.backend.jax.coordination import JaxCoordinator
from keras_preempt.backend.jax.errors import JaxErrors
from keras_preempt.backend.jax.feed import JaxFeed
from keras_preempt.backend.jax.running_fit import JaxFit, JaxStep
from keras_preempt.backend.jax.variables import JaxVariables
from keras_preempt.backend.place import Place
from keras_preempt.checkpoint.checked_file import Bytes
from keras_preempt.checkpoint.exchange import Gather
from keras_preempt.process.threads import call_within


class JaxBackend(seam.Backend):
    """Where JAX differs from one process that trains by itself; see `seam.Backend`.

    The strategy is the `keras.distribution.Distribution` that is set when training begins; None for none. Errors of
    Keras on JAX are avoided where a fit begins; nothing of Keras is replaced.
    """

    name = "JAX"
    variables = JaxVariables()
    errors = JaxErrors()
    feed = JaxFeed
    fit = JaxFit
    runs_ahead = True

    layout = staticmethod(place.layout)
    in_a_cluster = staticmethod(place.in_a_cluster)
    neighbours = staticmethod(place.neighbours)
    job = staticmethod(place.job)
    place = staticmethod(place.place)
    described = staticmethod(described)
    leave_together = staticmethod(distributed.leave_together)
    announce_end = staticmethod(distributed.announce_end)
    leave_refused = staticmethod(distributed.leave_refused)
    early_notice = staticmethod(distributed.early_notice)

    def versions(self) -> dict[str, str]:
        return {
            "keras": keras.__version__,
            "jax": jax.__version__,
            "jaxlib": jax.lib.__version__,
            "numpy": np.__version__,
        }

    def strategy_of(self, model: Any) -> Any:
        return keras.distribution.distribution()

    def replicas(self, strategy: Any) -> int:
        return 1 if strategy is None else int(strategy.device_mesh.shape[place.batch_axis(strategy)])

    def unordered_sums(self) -> str:
        has_gpu = any(device.platform == "gpu" for device in jax.local_devices())
        return OF_JAX.cure if has_gpu and not OF_JAX.is_set else ""

    def coordinator(self, place: Place) -> Coordinator:
        if place.members == 1:
            distributed.leave_service_last()
            return LocalCoordinator()
        distributed.leave_in_order()
        return JaxCoordinator(place.member, place.members)

    def gather(self, place: Place, patience: float) -> Gather | None:
        def gathered(data: Bytes) -> list[Bytes]:
            try:
                rows = call_within(patience, lambda: process_allgather(data), "keras_preempt-gather")
            except TimeoutError:
                raise jax.errors.JaxRuntimeError(
                    f"UNAVAILABLE: Expected all {place.members} processes to exchange what they have read. Received: "
                    f"nothing for {patience:.0f} s. One of them hangs, or the network is gone."
                ) from None
            return list(np.asarray(rows))

        return gathered

    def notice_keys(self) -> Coordinator:
        return JaxCoordinator(0, 1)

    def trace(self, model: Any, dataset: Any, *, early: bool = True, again: bool = False) -> JaxStep:
        return JaxStep(model)

    def before_capture(self, model: Any) -> None:
        model.jax_state_sync()  # Between two steps of an epoch the variables hold nothing.


BACKEND = JaxBackend()
