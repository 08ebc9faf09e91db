"""Where the log lines of this package go when the program has not said."""

from __future__ import annotations

import logging

logger = logging.getLogger("keras_preempt")


def show() -> None:
    """Shows log lines on standard error, unless the program has set up logging itself.

    What happens to a run (which checkpoint it continues from, why it ends) must be seen without any set-up.
    """
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("keras_preempt: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
