"""What the user of a fit has asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.notices.termination import TerminationConfig
from keras_preempt.report.delivery import OnEvent
from keras_preempt.state.input_size import StateLimit
from keras_preempt.training.run.participant import Hook
from keras_preempt.training.run.runtime import Runtime
from keras_preempt.training.save.memory_options import MemoryOptions
from keras_preempt.training.save.saves import Saves
from keras_preempt.training.save.schedule import Schedule
from keras_preempt.training.save.session import Session


@dataclass(frozen=True)
class Options:
    """What the user has asked for, as `PreemptionCallback` takes it; `hook` makes what else looks at boundaries."""

    store: Store
    staging_dir: str | os.PathLike[str] | None
    termination: TerminationConfig
    schedule: Schedule
    retention: Retention
    together: bool
    input_state: StateLimit
    memory: MemoryOptions | None = None
    look: float | None = None  # Seconds between two looks for a request to save.
    on_event: OnEvent | None = None
    hook: Callable[[int, str, Session, Saves, Runtime], Hook] = lambda *fit: Hook()
