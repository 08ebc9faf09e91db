from __future__ import annotations

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # google-api-core recommends a package for gRPC, which this client does not use, whenever grpcio is installed.
    warnings.filterwarnings("ignore", message="Please install grpcio-status", category=ImportWarning)
    import google.api_core.exceptions  # noqa: F401

from keras_preempt.checkpoint.local_store import LocalStore
from tests.checkpoint.builders import new_store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)
