"""Where notices of termination come from, and what they mean: one module for each kind of source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from keras_preempt.agreement.grace import Notice

__all__ = ["Notice"]

OnNotice = Callable[[Notice], None]


class Source(Protocol):
    """A source of notices: delivers them from `start` until `stop`, which can be called twice."""

    def start(self) -> None: ...

    def stop(self) -> None: ...
