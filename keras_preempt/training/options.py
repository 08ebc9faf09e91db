"""What the user has asked for, as the start of a fit takes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.notices.termination import TerminationConfig
from keras_preempt.report.delivery import OnEvent
from keras_preempt.state.input_size import StateLimit
from keras_preempt.training.hook import Hook
from keras_preempt.training.runtime import Runtime
from keras_preempt.training.saves import Saves
from keras_preempt.training.schedule import Schedule
from keras_preempt.training.session import Session


@dataclass(frozen=True)
class Options:
    """What the user has asked for, as `PreemptionCallback` takes it."""

    store: Store
    staging_dir: str | os.PathLike[str] | None
    termination: TerminationConfig
    schedule: Schedule
    retention: Retention
    together: bool
    input_state: StateLimit
    look: float | None = None  # Seconds between two looks for a request to save.
    on_event: OnEvent | None = None
    hook: Callable[[int, str, Session, Saves, Runtime], Hook] = lambda *fit: Hook()  # What a drill does.
