"""Replaces functions of Keras for as long as anything uses the replacements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Replacements:
    """Counts its users in all threads: the first `acquire` installs replacements, the last `release` undoes them.

    `install` is given this object, and calls `replace` for each function.
    """

    def __init__(self, install: Callable[[Replacements], None]) -> None:
        self._install = install
        # Reentrant: a finalizer may release one in the middle of a call of the same thread.
        self._lock = threading.RLock()
        self._needed = 0
        self._undo_steps: list[Callable[[], None]] = []

    def acquire(self) -> None:
        """Installs the replacements, unless they are installed. Each call takes one call of `release`."""
        with self._lock:
            if self._needed == 0:
                self._install(self)
            self._needed += 1

    def release(self) -> None:
        with self._lock:
            self._needed -= 1
            if self._needed == 0:
                while self._undo_steps:
                    self._undo_steps.pop()()

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        inherited = name not in vars(owner)
        original = vars(owner).get(name)

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return  # Other code has wrapped it since; ours does no harm there.
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        setattr(owner, name, replacement)
        self._undo_steps.append(undo)
