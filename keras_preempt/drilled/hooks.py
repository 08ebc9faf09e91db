"""The hooks of a drill. Outside of a drill they do nothing, and the rest of this folder is not imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keras_preempt.process import environment
from keras_preempt.training.run.hook import Hook

if TYPE_CHECKING:
    from keras_preempt.training.run.runtime import Runtime
    from keras_preempt.training.save.saves import Saves
    from keras_preempt.training.save.session import Session


def for_fit(member: int, key: str, session: Session, saves: Saves, runtime: Runtime) -> Hook:
    """Returns the drill's hook for the fit that keeps its checkpoints under `key`.

    Raises:
        ValueError: The variable of the drill is set to something else.
        OSError: The record of the steps cannot be opened.
    """
    if not (os.environ.get(environment.DRILL) or os.environ.get(environment.DRILL_RECORD)):
        return Hook()
    from keras_preempt.drilled import rehearsal

    return rehearsal.of_fit(member, key, session, saves, runtime)


def for_loop(member: int) -> Hook:
    """Returns the drill's hook for a custom loop; raises ValueError like `for_fit`."""
    if not os.environ.get(environment.DRILL):
        return Hook()
    from keras_preempt.drilled import rehearsal

    return rehearsal.Rehearsal(rehearsal.Drill.from_environment(member))
