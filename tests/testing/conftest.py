from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from keras_preempt.testing import FakeGcs

QUICK = DEFAULT_RETRY.with_timeout(10).with_delay(initial=0.01, maximum=0.05)
"""The client's own retries, in a hurry."""

PATIENT = 300.0
"""The longest wait for something that must come, in seconds; the machine may be busy."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < limit, f"not within {PATIENT} s: {what}"
        time.sleep(0.05)


def client_at(endpoint: str, **options: Any) -> Any:
    """A client without credentials."""
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    how = {"client_options": {"api_endpoint": endpoint}, **options}
    return storage.Client(project="fake-project", credentials=credentials, **how)


@pytest.fixture(autouse=True)
def no_connection_is_left_to_other_tests() -> Iterator[None]:
    """The client leaves the one of a download that ended in an error to the garbage collector."""
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
