"""A second look at every boundary of a fit or a loop: nothing, unless a drill takes part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_preempt.agreement.messages import Position


class Hook:
    """Does nothing. A drill passes one of its own; see `keras_preempt.drilled`.

    Attributes:
        every_boundary: Whether to be called at every boundary, whatever happens.
    """

    every_boundary = False

    def boundary(self, position: Position, logs: Mapping[str, Any] | None = None) -> None:
        """Training stands at a boundary, after an execution with these logs; this may not return."""

    def finish(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        """Training is over."""

    def state_was_missed(self, callbacks: Sequence[str]) -> None:
        """An error leaves the fit, raised in callbacks whose state was not kept."""

    def close(self) -> None:
        """The fit is left."""
