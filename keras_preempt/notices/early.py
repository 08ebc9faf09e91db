"""A termination signal that the backend's runtime has heard before Python listened, and tells of a little later."""

from __future__ import annotations

import time
from collections.abc import Callable

from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource
from keras_preempt.notices.stopping import Stopping

EARLY = "signal before fit"
"""The name of the source."""

_EACH = 0.25
_LOOKS = 12
"""3 s in all. JAX's handler sets a flag, which a thread of JAX looks at once a second before it tells the others."""


class EarlyNotices(AskingSource):
    """Hears a signal that came shortly before this was started.

    Args:
        look: Waits at most so many seconds; returns when the signal came, in words, or None if there was none.
        on_notice: Called with the notice, once.
    """

    def __init__(self, look: Callable[[float], str | None], on_notice: Callable[[Notice], None]) -> None:
        super().__init__(EARLY, on_notice, None)
        self._look = look
        self._left = _LOOKS

    def _ask(self, stopping: Stopping) -> float | None:
        self._left -= 1
        if (since := self._look(_EACH)) is None:
            return 0.0 if self._left else None
        stopping.wait(0.0)  # After the end of the fit, nobody is told.
        self._on_notice(early(since))
        return None


def early(since: str) -> Notice:
    """Returns the notice of a signal that came before fit, at a time in words."""
    return Notice(EARLY, f"a termination signal at {since}, before fit", time.time())
