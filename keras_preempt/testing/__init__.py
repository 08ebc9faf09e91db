"""What a training script's own tests can lean on: stand-ins for the services that preemption needs.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.testing.fake_gcs import FakeGcs
    from keras_preempt.testing.fake_gcs_faults import FAULT_KINDS, Faults
    from keras_preempt.testing.fake_gcs_records import ObjectSummary, Request

__all__ = ["FAULT_KINDS", "FakeGcs", "Faults", "ObjectSummary", "Request"]

_HOMES = {
    "FAULT_KINDS": "keras_preempt.testing.fake_gcs_faults",
    "FakeGcs": "keras_preempt.testing.fake_gcs",
    "Faults": "keras_preempt.testing.fake_gcs_faults",
    "ObjectSummary": "keras_preempt.testing.fake_gcs_records",
    "Request": "keras_preempt.testing.fake_gcs_records",
}


def __getattr__(name: str) -> Any:
    # On first use, so that `python -m keras_preempt.testing.fake_gcs` does not find itself imported already.
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_preempt.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
