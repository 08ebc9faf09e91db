from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from keras_preempt.testing import FakeMetadata
from tests.notices.ear import Ear


def threads(of: str | tuple[str, ...] = ("keras_preempt-", "fake-metadata")) -> set[str]:
    """The names of the threads that are there, as far as they begin like this."""
    return {one.name for one in threading.enumerate() if one.name.startswith(of)}


@pytest.fixture(autouse=True)
def threads_before() -> Iterator[set[str]]:
    """The threads of earlier tests; this one leaves no other."""
    before = threads()
    yield before
    assert threads() <= before


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, threads_before: set[str]) -> Iterator[FakeMetadata]:
    """A fake that every source finds by itself; sources leave no thread that ends with it alone."""
    with FakeMetadata() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake
        assert threads("keras_preempt-") <= threads_before


@pytest.fixture
def ear() -> Ear:
    return Ear()
