"""For the tests of training scripts: the drill, and fakes of the services that preemption involves.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.testing.azure.fake import FakeAzure
    from keras_preempt.testing.buckets.faults import FAULT_KINDS, Faults
    from keras_preempt.testing.buckets.objects import ObjectSummary
    from keras_preempt.testing.buckets.wire import Request
    from keras_preempt.testing.drills.running import drill
    from keras_preempt.testing.drills.verdict import (
        DrillDifference,
        DrillFit,
        DrillParting,
        DrillPreemption,
        DrillVerdict,
    )
    from keras_preempt.testing.gcs.fake import FakeGcs
    from keras_preempt.testing.metadata.fake import METADATA_FAULTS, FakeMetadata, MetadataRequest
    from keras_preempt.testing.s3.fake import FakeS3

__all__ = [
    "FAULT_KINDS",
    "METADATA_FAULTS",
    "DrillDifference",
    "DrillFit",
    "DrillParting",
    "DrillPreemption",
    "DrillVerdict",
    "FakeAzure",
    "FakeGcs",
    "FakeMetadata",
    "FakeS3",
    "Faults",
    "MetadataRequest",
    "ObjectSummary",
    "Request",
    "drill",
]

_HOMES = {
    "FAULT_KINDS": "buckets.faults",
    "FakeAzure": "azure.fake",
    "FakeGcs": "gcs.fake",
    "FakeMetadata": "metadata.fake",
    "FakeS3": "s3.fake",
    "Faults": "buckets.faults",
    "METADATA_FAULTS": "metadata.fake",
    "MetadataRequest": "metadata.fake",
    "ObjectSummary": "buckets.objects",
    "Request": "buckets.wire",
    "drill": "drills.running",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # On first use, so that `python -m keras_preempt.testing.gcs.fake` does not find itself imported already.
    if name not in __all__:
        raise AttributeError(f"module 'keras_preempt.testing' has no attribute {name!r}")
    return getattr(import_module(f"keras_preempt.testing.{_HOMES.get(name, 'drills.verdict')}"), name)
