from __future__ import annotations

from pathlib import Path

import pytest

from keras_preempt.checkpoint.local_store import LocalStore
from tests.checkpoint.builders import new_store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)
