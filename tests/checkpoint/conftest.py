from __future__ import annotations

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # google-api-core recommends a package for gRPC, which this client does not use, whenever grpcio is installed.
    warnings.filterwarnings("ignore", message="Please install grpcio-status", category=ImportWarning)
    import google.api_core.exceptions  # noqa: F401

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.layout import RUN
from tests.checkpoint.builders import new_store
from tests.checkpoint.fuzz_targets import Targets, copied, make
from tests.checkpoint.hostile_start import IDENTITY
from tests.checkpoint.sharded_builders import Counting


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(new_store(tmp_path).path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    made = make(tmp_path_factory.mktemp("saved"))
    made.store.create(RUN, documents.encode_document(IDENTITY))
    return made


@pytest.fixture
def targets(saved: Targets, tmp_path: Path) -> Targets:
    return copied(saved, tmp_path)
