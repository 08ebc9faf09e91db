"""Hears what a source says, and waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_preempt.notices import Notice
from keras_preempt.notices.polling import Backoff
from keras_preempt.testing import FakeMetadata

PATIENCE = 20.0
"""The longest wait for something that must come, in seconds; the machine may be busy."""

QUIET = 0.2
"""How long to listen for something that must not come, in seconds: many times the interval of the sources."""

POLL = 0.02
"""The interval of sources that poll, in seconds."""


def quick() -> Backoff:
    """Hardly any wait after failures."""
    return Backoff(0.02, 0.05, 0.05)


@contextmanager
def started(source: Any) -> Iterator[Any]:
    """A source of notices that is stopped at the end."""
    source.start()
    try:
        yield source
    finally:
        source.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it does not come to pass"
        time.sleep(0.01)


def wait_for_more(fake: FakeMetadata, of: str, more: int = 3) -> None:
    """Waits for some more questions."""
    fake.wait_for_requests(sum(of in request.text for request in fake.requests) + more, of, PATIENCE)


class Ear:
    """Keeps notices and withdrawals, with the time at which each came."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.withdrawn: list[Notice] = []
        self.heard_at: list[float] = []
        self._changed = threading.Condition()

    def notice(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append(notice)
            self.heard_at.append(time.monotonic())
            self._changed.notify_all()

    def withdraw(self, notice: Notice) -> None:
        with self._changed:
            self.withdrawn.append(notice)
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout: float = PATIENCE) -> bool:
        with self._changed:
            return self._changed.wait_for(ready, timeout)

    def wait(self, count: int = 1) -> Notice:
        """The notice that came as the `count`th; no other has come after it."""
        assert self._wait(lambda: len(self.notices) >= count), self.notices
        assert len(self.notices) == count, self.notices
        return self.notices[-1]

    def wait_withdrawn(self, count: int = 1) -> Notice:
        """The notice that was withdrawn as the `count`th."""
        assert self._wait(lambda: len(self.withdrawn) >= count), self.withdrawn
        assert len(self.withdrawn) == count
        return self.withdrawn[-1]

    def hears_nothing_new(self) -> bool:
        """Whether nothing comes for a while."""
        before = len(self.notices), len(self.withdrawn)
        return not self._wait(lambda: (len(self.notices), len(self.withdrawn)) != before, QUIET)
