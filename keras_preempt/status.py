"""What a worker leaves for the launcher that started it: one small file when its fit ends."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keras_preempt import environment

if TYPE_CHECKING:
    from keras_preempt.session import Session

logger = logging.getLogger("keras_preempt")

_LOADED_AT = time.time()


class Status:
    """How a fit of this worker went.

    Attributes:
        finished: Whether training is over.
        saved: Whether the checkpoint of the end is committed.
        committed: Its folder.
        exit_code: The exit status of a preemption.
        notices: When notices came, in seconds since 1970.
        aligned_at: When this worker stood at the agreed boundary.
        committed_at: When the checkpoint was committed.
    """

    def __init__(self) -> None:
        self.finished = False
        self.saved = False
        self.committed: str | None = None
        self.exit_code: int | None = None
        self.notices: list[float] = []
        self.aligned_at: float | None = None
        self.committed_at: float | None = None
        self._seconds: dict[str, float] = {"import and build": 0.0}
        self._training_since: float | None = None

    def spent(self, what: str, seconds: float) -> None:
        """Adds to the account of where time went."""
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def began_training(self) -> None:
        """The first step is next."""
        self._training_since = time.time()
        spent = sum(self._seconds.values())
        self._seconds["import and build"] = max(0.0, time.time() - _LOADED_AT - spent)

    def write(self, member: int, incarnation: int, session: Session) -> None:
        """Leaves the file where the launcher asked for it, or nothing if no launcher did."""
        folder = os.environ.get(environment.STATUS_DIR)
        if not folder:
            return
        timing = dict(self._seconds)
        if self._training_since is not None:
            whole = time.time() - self._training_since
            timing["train"] = max(0.0, whole - sum(timing.get(k, 0.0) for k in ("hold", "save", "exit")))
        status = {
            "step": session.steps_at_start + session.steps_run,
            "steps_run": session.steps_run,
            "saved": self.saved,
            "committed": self.committed,
            "finished": self.finished,
            "incarnation": incarnation,
            "exit_code": self.exit_code,
            "notice_at": min(self.notices, default=None),
            "aligned_at": self.aligned_at,
            "committed_at": self.committed_at,
            "timing": timing,
        }
        target = Path(folder) / f"worker-{member}.json"
        partial = target.with_suffix(f".{os.getpid()}")
        try:
            partial.write_text(json.dumps(status))
            partial.replace(target)
        except OSError as error:
            logger.warning("The status file %s could not be written: %s", target, error)
