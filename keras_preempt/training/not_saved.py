"""What the log says of a save that has failed."""

from __future__ import annotations

import logging

from keras_preempt.checkpoint.boxes import PiecesLost
from keras_preempt.checkpoint.errors import CheckpointError

logger = logging.getLogger("keras_preempt")


def tell_not_saved(step: int | None, error: Exception) -> None:
    """Logs why a save has failed."""
    known = isinstance(error, (CheckpointError, PiecesLost, OSError))
    logger.error(
        "The checkpoint at step %s was NOT saved: %s",
        step,
        error if known else f"{type(error).__name__}: {error}",
        exc_info=None if known or isinstance(error, MemoryError) else error,
    )
