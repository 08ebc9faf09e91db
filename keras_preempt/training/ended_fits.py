"""Fits that had ended before this process began, told in one line once it is known what follows them.

A script that is started again makes all its calls of `fit` again. Those that had ended train nothing, and none of them
can tell whether it is the last: whether "raise epochs" is good advice, or a loop is about to make the next call. So
they are counted. The next fit that trains says how many there were; if none does, the end of the process says that
training is over. In an interactive session, whose end may be far away, each says so itself.
"""

from __future__ import annotations

import atexit
import logging
import sys
from dataclasses import dataclass, field

logger = logging.getLogger("keras_preempt")


@dataclass
class EndedFits:
    """The fits that had ended, of those that this process has begun since it last trained.

    Attributes:
        interactive: Whether each is told of at once.
    """

    interactive: bool = field(default_factory=lambda: hasattr(sys, "ps1"))
    _count: int = 0
    _url: str = ""
    _epochs: int = 0

    def had_ended(self, url: str, epochs: int) -> None:
        """A fit is restored at its end.

        Args:
            url: The directory that its callback was given.
            epochs: How many epochs it was asked for.
        """
        self._count, self._url, self._epochs = self._count + 1, url, epochs
        if self.interactive:
            self.tell()

    def before_training(self) -> str:
        """Returns what to say of them in front of the line of a fit that trains; empty if there are none."""
        count, self._count = self._count, 0
        if count == 0:
            return ""
        return f"{'1 fit' if count == 1 else f'{count} fits'} before this one had ended, and trained nothing now. "

    def tell(self) -> None:
        """Says that they were all that there was to do; nothing if there are none."""
        count, self._count = self._count, 0
        if count == 1:
            logger.info(
                "Training is over already: all %d epochs are done in %s. Raise epochs to go on, or pass another "
                "directory for another run.",
                self._epochs,
                self._url,
            )
        elif count > 1:
            logger.info(
                "Training is over already: all %d fits of this process had ended, and trained nothing now. Raise the "
                "epochs of the last one to go on, or pass another directory for another run.",
                count,
            )


ended_fits = EndedFits()
"""Those of this process."""

atexit.register(ended_fits.tell)
