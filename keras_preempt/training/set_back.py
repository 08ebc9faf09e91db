"""An optimizer whose count of steps is set back, as by a schedule that restarts, while checkpoints go by that count."""

from __future__ import annotations

import logging

from keras_preempt.training.several_fits import is_news

logger = logging.getLogger("keras_preempt")


def tell(before: int, now: int) -> None:
    """Says once in this process that the count was set back.

    Args:
        before: The steps that were done when it was last looked at.
        now: Those that it says are done now.
    """
    if now < before and is_news("set back"):
        logger.warning(
            "NOT exact after a preemption from here on: the optimizer's count of steps was set back from %d to %d. "
            "Checkpoints are told apart by it: until it has passed %d again, a restart takes one from before. Let the "
            "schedule count by itself, as with optimizer.iterations minus the step at which it began anew.",
            before,
            now,
            before,
        )
