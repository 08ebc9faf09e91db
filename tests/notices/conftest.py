from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from keras_preempt.testing import FakeMetadata
from tests.notices.ear import Ear


def threads() -> set[str]:
    return {
        one.name for one in threading.enumerate() if one.name.startswith(("keras_preempt-", "fake-metadata"))
    }


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    """A fake that every source finds by itself; neither it nor a source leaves a thread."""
    before = threads()
    with FakeMetadata() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake
        assert {name for name in threads() - before if name.startswith("keras_preempt-")} == set()
    assert threads() - before == set()


@pytest.fixture
def ear() -> Ear:
    return Ear()
