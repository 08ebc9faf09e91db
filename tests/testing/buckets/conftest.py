from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import obstore
import pytest
from obstore.store import AzureStore, S3Store

from keras_preempt.testing import FakeAzure, FakeS3

AnyFake = FakeS3 | FakeAzure
FAKES: dict[str, type[AnyFake]] = {"s3": FakeS3, "azure": FakeAzure}


def store_of(
    fake: AnyFake, bucket: str = "bucket", retries: int = 0, **config: Any
) -> obstore.store.ObjectStore:
    """obstore's view of a bucket of a fake."""
    from datetime import timedelta

    how = {
        "client_options": {"allow_http": True},
        "retry_config": {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=30),
            "backoff": {
                "init_backoff": timedelta(milliseconds=5),
                "max_backoff": timedelta(milliseconds=20),
                "base": 2,
            },
        },
    }
    if isinstance(fake, FakeS3):
        access_key, secret = next(iter(fake.credentials.items()))
        given = {
            "endpoint": fake.endpoint,
            "access_key_id": access_key,
            "secret_access_key": secret,
            "region": fake.region,
        }
        return S3Store(bucket, config={**given, **config}, **how)
    given = {"endpoint": fake.endpoint, "account_name": fake.account, "account_key": fake.account_key}
    return AzureStore(bucket, config={**given, **config}, **how)


@contextmanager
def no_threads_left(prefix: str = "fake-") -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [each for each in set(threading.enumerate()) - before if each.name.startswith(prefix)] == []


@pytest.fixture(params=list(FAKES))
def fake(request: pytest.FixtureRequest) -> Iterator[AnyFake]:
    with no_threads_left(), FAKES[request.param]() as running:
        yield running


@pytest.fixture
def store(fake: AnyFake) -> obstore.store.ObjectStore:
    return store_of(fake)
