"""A real termination signal at a chosen step, for drills: see the command `keras-preempt drill`."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass

from keras_preempt import environment
from keras_preempt.alignment import Position


@dataclass(frozen=True)
class Drill:
    """This process sends itself SIGTERM right before it starts optimizer step `step`."""

    step: int

    @classmethod
    def from_environment(cls, member: int) -> Drill | None:
        """Reads the environment variable of the drill; None if it does not mean this worker.

        Raises:
            ValueError: The variable is set to something else than a drill.
        """
        text = os.environ.get(environment.DRILL)
        if not text:
            return None
        try:
            wanted = json.loads(text)
            return cls(int(wanted["step"])) if int(wanted["member"]) == member else None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f'Expected {environment.DRILL} to be like {{"member": 0, "step": 10}}. Received: {text!r}. '
                "It is set by keras-preempt drill; unset it elsewhere."
            ) from error

    def strike(self, position: Position) -> bool:
        """Sends the signal if this is the step or past it; says whether it did."""
        if position.phase != "train" or (position.step or 0) < self.step:
            return False
        os.kill(os.getpid(), signal.SIGTERM)
        return True
