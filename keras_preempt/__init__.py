"""Keras 3 training that survives preemption and resumes bit-identically.

`model.fit(callbacks=[PreemptionCallback("runs/1")])` is all that a training script needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.callback import PreemptionCallback
    from keras_preempt.handler import PreemptionCheckpointHandler
    from keras_preempt.keras_repairs import MultiWorkerFit, enable_multi_worker_fit
    from keras_preempt.termination import Preempted, TerminationConfig
    from keras_preempt.watcher import PreemptionWatcher
    from keras_preempt.weights import load_weights
    from keras_preempt.worker_lost import WorkerLost

__version__ = "0.1.0"

__all__ = [
    "MultiWorkerFit",
    "Preempted",
    "PreemptionCallback",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TerminationConfig",
    "WorkerLost",
    "__version__",
    "enable_multi_worker_fit",
    "load_weights",
]

_HOMES = {
    "MultiWorkerFit": "keras_preempt.keras_repairs",
    "Preempted": "keras_preempt.termination",
    "PreemptionCallback": "keras_preempt.callback",
    "PreemptionWatcher": "keras_preempt.watcher",
    "PreemptionCheckpointHandler": "keras_preempt.handler",
    "TerminationConfig": "keras_preempt.termination",
    "WorkerLost": "keras_preempt.worker_lost",
    "enable_multi_worker_fit": "keras_preempt.keras_repairs",
    "load_weights": "keras_preempt.weights",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line must not wait for TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_preempt' has no attribute {name!r}")
    from keras_preempt.requirements import check

    check()
    return getattr(import_module(_HOMES[name]), name)
