"""Fakes of the services that preemption involves, for the tests of training scripts.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.testing.gcs.fake import FakeGcs
    from keras_preempt.testing.gcs.faults import FAULT_KINDS, Faults
    from keras_preempt.testing.gcs.objects import ObjectSummary
    from keras_preempt.testing.gcs.wire import Request
    from keras_preempt.testing.metadata.fake import FakeMetadata
    from keras_preempt.testing.metadata.faults import METADATA_FAULTS
    from keras_preempt.testing.metadata.wire import MetadataRequest

__all__ = [
    "FAULT_KINDS",
    "METADATA_FAULTS",
    "FakeGcs",
    "FakeMetadata",
    "Faults",
    "MetadataRequest",
    "ObjectSummary",
    "Request",
]

_HOMES = {
    "FAULT_KINDS": "keras_preempt.testing.gcs.faults",
    "FakeGcs": "keras_preempt.testing.gcs.fake",
    "FakeMetadata": "keras_preempt.testing.metadata.fake",
    "Faults": "keras_preempt.testing.gcs.faults",
    "METADATA_FAULTS": "keras_preempt.testing.metadata.faults",
    "MetadataRequest": "keras_preempt.testing.metadata.wire",
    "ObjectSummary": "keras_preempt.testing.gcs.objects",
    "Request": "keras_preempt.testing.gcs.wire",
}


def __getattr__(name: str) -> Any:
    # On first use, so that `python -m keras_preempt.testing.gcs.fake` does not find itself imported already.
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_preempt.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
