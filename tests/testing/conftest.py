from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.testing import FakeGcs

with warnings.catch_warnings():
    # google-api-core recommends a package for gRPC, which this client does not use, whenever grpcio is installed.
    warnings.simplefilter("ignore", ImportWarning)
    from google.cloud.storage.retry import DEFAULT_RETRY

QUICK = DEFAULT_RETRY.with_timeout(10).with_delay(initial=0.01, maximum=0.05)
"""The client's own retries, in a hurry."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The client leaves the connection of a download that ended in an error to the garbage collector.
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def no_connection_is_left_to_other_tests() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    before = set(threading.enumerate())
    with FakeGcs(buckets=("bucket",)) as server:
        yield server
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("fake-gcs")]
    assert left == []


@pytest.fixture
def bucket(gcs: FakeGcs) -> Any:
    return gcs.client().bucket("bucket")
