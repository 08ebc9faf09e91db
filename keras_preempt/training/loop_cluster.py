"""Which worker of which cluster a custom loop runs in, by its cluster resolver."""

from __future__ import annotations

from typing import Any

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.training import side_by_side


def join(resolver: Any) -> tuple[Place, Coordinator]:
    """Finds this process among the workers.

    Args:
        resolver: The cluster resolver of the strategy; None for that of the strategy in whose scope this is called.

    Raises:
        ValueError: This process is none of the training workers, or their steps cannot be aligned.
        CoordinationLost: TensorFlow's coordination service does not run in this process.
    """
    here, strategy = backend().place_of_loop(resolver)
    if strategy is not None and (alone := side_by_side.alone(strategy, here)) is not None:
        alone.warn()
    return here, backend().coordinator(here)
