"""What happens to signals around a fork: one that is meant for the child must not be taken for the parent's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable


def keep_apart(signals: Callable[[], Iterable[signal.Signals]], in_child: Callable[[], None]) -> None:
    """Holds signals back around every fork from now on, until the child has handlers of its own.

    Args:
        signals: Returns which.
        in_child: Sees to the handlers, in the child.
    """
    held = threading.local()  # The mask is a thread's own, and the thread that forks is the child's only one.

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals())

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def begin_child() -> None:
        try:
            in_child()
        finally:
            let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=begin_child)
