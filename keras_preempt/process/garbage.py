"""Python's garbage collection, paused where a process has no time for it.

It runs in whatever thread happens to make an object, and freeing one may take long: an iterator of a tf.data pipeline
sometimes takes up to a minute (see docs/troubleshooting.md), which a machine that goes away in 30 s does not have. The
iterators of earlier epochs are such garbage, since they refer to themselves.
"""

from __future__ import annotations

import gc
import os
import threading

_lock = threading.Lock()
_holders: set[GarbageCollection] = set()
_was_enabled = False


class GarbageCollection:
    """Pauses gc while any of these holds it off; a program that has disabled it keeps it so."""

    def hold_off(self, *, held: bool) -> None:
        """Starts or ends a pause."""
        global _was_enabled
        with _lock:
            if held and self not in _holders:
                if not _holders:
                    _was_enabled = gc.isenabled()
                    gc.disable()
                _holders.add(self)
            elif not held and self in _holders:
                _holders.remove(self)
                if not _holders and _was_enabled:
                    gc.enable()


def _go_on_in_child() -> None:
    # Nobody pauses it there, and a process that loads data may live long.
    global _lock
    _lock = threading.Lock()  # Another thread may have been about to hold it off.
    if _holders:
        _holders.clear()
        if _was_enabled:
            gc.enable()


os.register_at_fork(after_in_child=_go_on_in_child)
