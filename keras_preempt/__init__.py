"""Keras 3 training that survives preemption and resumes bit-identically.

`model.fit(callbacks=[PreemptionCallback("runs/1")])` is all that a training script needs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.backend.tensorflow.errors import WorkerLost
    from keras_preempt.backend.tensorflow.multi_worker_fit import MultiWorkerFit, enable_multi_worker_fit
    from keras_preempt.callback import PreemptionCallback
    from keras_preempt.handler import PreemptionCheckpointHandler
    from keras_preempt.notices.termination import Preempted, TerminationConfig
    from keras_preempt.notices.watcher import PreemptionWatcher
    from keras_preempt.report.event import Event
    from keras_preempt.state.weights import load_weights
    from keras_preempt.training.save.resuming import ResumedFrom

__version__ = "0.3.0.dev0"

__all__ = [
    "Event",
    "MultiWorkerFit",
    "Preempted",
    "PreemptionCallback",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "ResumedFrom",
    "TerminationConfig",
    "WorkerLost",
    "__version__",
    "enable_multi_worker_fit",
    "load_weights",
]

_HOMES = {
    "Event": "keras_preempt.report.event",
    "MultiWorkerFit": "keras_preempt.backend.tensorflow.multi_worker_fit",
    "Preempted": "keras_preempt.notices.termination",
    "PreemptionCallback": "keras_preempt.callback",
    "PreemptionWatcher": "keras_preempt.notices.watcher",
    "PreemptionCheckpointHandler": "keras_preempt.handler",
    "ResumedFrom": "keras_preempt.training.save.resuming",
    "TerminationConfig": "keras_preempt.notices.termination",
    "enable_multi_worker_fit": "keras_preempt.backend.tensorflow.multi_worker_fit",
    "load_weights": "keras_preempt.state.weights",
}

_OF_BACKENDS = {"WorkerLost": "errors"}
"""Names that each backend has one of, by the module in its folder."""

_OF_TENSORFLOW = frozenset(
    {"MultiWorkerFit", "PreemptionCheckpointHandler", "PreemptionWatcher", "enable_multi_worker_fit"}
)
"""Names that take the place of something of TensorFlow, or repair Keras on it."""


def __dir__() -> list[str]:
    # Without those that the backend lacks: whoever lists names, as help() does, asks for each.
    keras: Any = sys.modules.get("keras")
    backend = keras.backend.backend() if hasattr(keras, "backend") else os.environ.get("KERAS_BACKEND")
    lacking = _OF_TENSORFLOW if backend and backend != "tensorflow" else frozenset()
    return sorted({*globals(), *__all__} - lacking)


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line must not wait for TensorFlow.
    if name not in _HOMES and name not in _OF_BACKENDS:
        raise AttributeError(f"module 'keras_preempt' has no attribute {name!r}")
    from keras_preempt.backend.requirements import check_installed
    from keras_preempt.process import first_process, heartbeat

    first_process.hear_sigterm()  # Before Keras is imported, which takes seconds.
    heartbeat.of_process()
    check_installed()
    import keras

    _keep_compiled_programs()
    backend = keras.backend.backend()
    if name in _OF_TENSORFLOW and backend != "tensorflow":
        raise ImportError(
            f"Expected Keras to run on the TensorFlow backend, of which keras_preempt.{name} is a part. Received: "
            f"{backend!r}. Train with model.fit and PreemptionCallback, which work on both; or set "
            "KERAS_BACKEND=tensorflow before Keras is imported."
        )
    home = _HOMES.get(name) or f"keras_preempt.backend.{backend}.{_OF_BACKENDS[name]}"
    return getattr(import_module(home), name)


def _keep_compiled_programs() -> None:
    if "jax" in sys.modules and os.environ.get("KERAS_PREEMPT_STATUS_DIR"):
        from keras_preempt.backend.jax.compiled_programs import keep_by_every_process

        keep_by_every_process()


_keep_compiled_programs()  # Scripts import Keras first; what they compile before they use the callback counts, too.
