"""On JAX every variable exists before the first step: a step is a function of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class FirstUse:
    """A watch over variables that come into being, of which there are none.

    Args:
        known: The variables that exist already.
        look: Never called.
    """

    def __init__(self, known: Iterable[Any], look: Callable[[Any], bool]) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Ends it. Can be called twice."""
