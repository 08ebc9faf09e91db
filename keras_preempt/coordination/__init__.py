"""How the workers of a job talk to each other: a few small keys that can be written once."""

from __future__ import annotations

from keras_preempt.coordination.coordinator import (
    ABORTED,
    CoordinationLost,
    CoordinationTimeout,
    Coordinator,
)

__all__ = ["ABORTED", "CoordinationLost", "CoordinationTimeout", "Coordinator"]
