"""The hooks of a drill. Outside of a drill they do nothing, and the rest of this folder is not imported."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from keras_preempt.process import environment
from keras_preempt.training.run.participant import Hook

if TYPE_CHECKING:
    from keras_preempt.training.run.runtime import Runtime
    from keras_preempt.training.save.saves import Saves
    from keras_preempt.training.save.session import Session

# Names are relative to where the process was started: one that changes to another folder for each fit means
# different directories by the same words, and a drill may run each of its runs in a copy of the working directory.
_started_in: str | None = None
with contextlib.suppress(OSError):
    _started_in = os.getcwd()


def directory_for(directory: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the directory that a callback uses instead of the one that it was given; that one outside a drill."""
    wanted = os.environ.get(environment.DIRECTORY) or directory
    root = os.environ.get(environment.DRILL_DIRECTORY)
    if not root or not isinstance(wanted, (str, os.PathLike)):
        return wanted
    from keras_preempt.drilled import places

    return places.drill_directory(wanted, root, _started_in)


def for_fit(member: int, key: str, session: Session, saves: Saves, runtime: Runtime) -> Hook:
    """Returns the drill's hook for the fit that keeps its checkpoints under `key`.

    Raises ValueError if the variable of the drill is wrong, OSError if the record of the steps cannot be opened.
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
