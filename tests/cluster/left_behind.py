"""Whether a signal's handler is what it was before a fit or a loop."""

from __future__ import annotations

import signal
from typing import Any

from keras_preempt.notices.signals import EndsWith


def is_given_back(number: int, earlier: Any) -> bool:
    """Whether `earlier` handles the signal again; of a process that was to end, it is put back here.

    Such a process keeps its exit status whatever signals still come; a test's goes on.
    """
    if isinstance(signal.getsignal(number), EndsWith):
        signal.signal(number, earlier)
    return signal.getsignal(number) is earlier
