"""A signal that came shortly before fit is heard when the backend tells of it, once, and not for ever."""

from __future__ import annotations

import threading

import pytest

from keras_preempt.notices import Notice
from keras_preempt.notices.polling import EARLY, EarlyNotices
from tests.notices.ear import started


class Runtime:
    """Tells of a signal when it is looked at for the so-many-th time."""

    def __init__(self, tells_at: int | None) -> None:
        self.looks = 0
        self.waited = 0.0
        self.notices: list[Notice] = []
        self.done = threading.Event()
        self._tells_at = tells_at

    def look(self, timeout: float) -> str | None:
        self.looks += 1
        self.waited += timeout
        if self.looks == self._tells_at:
            return "noon"
        if self._tells_at is None and self.waited >= 2.9:
            self.done.set()
        return None

    def hear(self, notice: Notice) -> None:
        self.notices.append(notice)
        self.done.set()


@pytest.mark.parametrize("tells_at", [1, 3])
def test_it_is_told_once(tells_at: int) -> None:
    runtime = Runtime(tells_at)
    with started(EarlyNotices(runtime.look, runtime.hear)):
        assert runtime.done.wait(10.0)
    (notice,) = runtime.notices
    assert (notice.source, runtime.looks) == (EARLY, tells_at)
    assert "a termination signal at noon, before fit" in str(notice)


def test_it_is_waited_for_longer_than_the_backend_takes_to_tell_and_no_longer() -> None:
    runtime = Runtime(None)
    with started(EarlyNotices(runtime.look, runtime.hear)):
        assert runtime.done.wait(10.0)
    assert 2.0 < runtime.waited < 5.0
    assert runtime.notices == []


def test_after_the_end_of_the_fit_nobody_is_told() -> None:
    asked = threading.Event()
    notices: list[Notice] = []

    def look(timeout: float) -> str | None:
        source.stop()  # The fit ends while the backend is asked.
        asked.set()
        return "noon"

    source = EarlyNotices(look, notices.append)
    source.start()
    assert asked.wait(10.0)
    source.stop()  # Waits for the thread.
    assert notices == []
