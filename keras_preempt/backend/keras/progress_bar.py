"""Whether Keras' progress bar stands in the line that standard output is in: it ends no line until the epoch ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras


class ProgressBar:
    """The progress bar of a fit.

    Args:
        callbacks: All callbacks of the fit.
    """

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._logger = next((c for c in callbacks if isinstance(c, keras.callbacks.ProgbarLogger)), None)
        self._ended: Any = None

    def drawn_at(self) -> float:
        """When the bar was drawn last, in seconds since 1970; 0 if standard output begins a new line."""
        bar = getattr(self._logger, "progbar", None)
        if bar is None or bar is self._ended or getattr(bar, "verbose", 0) != 1:
            return 0.0
        return float(getattr(bar, "_last_update", 0.0))

    def ended(self) -> None:
        """An epoch has ended, and with it the line of its bar."""
        self._ended = getattr(self._logger, "progbar", None)
