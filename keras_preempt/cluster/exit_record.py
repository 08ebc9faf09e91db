"""Records in the events of a run how its processes ended, since a process that is killed cannot."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cluster.local import WorkerExit
from keras_preempt.cluster.status import read_fit
from keras_preempt.drilled.places import record_name
from keras_preempt.process.environment import DRILL_RECORD
from keras_preempt.report import events

_PATIENCE = 30.0
"""Seconds that writing the record may take."""


def record_exits(
    status_dir: Path,
    exits: Sequence[WorkerExit],
    say: Callable[[str], None],
    steps: Callable[[int], int | None] = lambda member: None,
) -> None:
    """Writes the end of each worker that has begun a fit to the events of that fit.

    `status_dir` is where the workers have named the fits that they began. `say` is called with a line about what could
    not be written, from which only the report suffers. `steps` returns how many steps of optimizers a worker is known
    to have done, or None.
    """
    monotonic_to_unix = time.time() - time.monotonic()
    lines: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
    for exit in exits:
        fit = read_fit(status_dir, exit.index)
        if fit is not None:
            done = steps(exit.index)
            known = {} if done is None else {"step": done}
            line = events.line("gone", exit.at + monotonic_to_unix, exit.index, code=exit.code, **known)
            lines[fit].append(line)
    for (directory, incarnation), told in lines.items():
        try:
            store = open_store(directory)
            store.deadline = time.monotonic() + _PATIENCE
            try:
                if store.children(EVENTS):  # Otherwise somebody has removed the directory meanwhile.
                    store.create(events.launcher_log_name(incarnation), b"".join(told))
            finally:
                store.close()
        except (CheckpointError, OSError, ValueError) as error:
            say(f"how the workers ended could not be recorded in {directory}: {error}")


def recorded_steps(environment: Mapping[str, str | None], incarnation: int, member: int) -> int | None:
    """How many steps a worker has done, from the record that it writes in a drill; None outside of one.

    `environment` has the variables that the workers were given; `incarnation` is how often the launcher had started
    them before.
    """
    folder = environment.get(DRILL_RECORD)
    if not folder:
        return None
    try:
        lines = (Path(folder) / record_name(incarnation, member)).read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):  # The last one may be half-written.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return None
