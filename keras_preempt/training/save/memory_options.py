"""Where and when a fit is saved in memory, as the user has asked."""

from __future__ import annotations

import os
from dataclasses import dataclass

from keras_preempt.checkpoint import machine_memory
from keras_preempt.process import environment
from keras_preempt.training.save.schedule import Schedule, schedule_from


@dataclass(frozen=True)
class MemoryOptions:
    """How a fit is saved in memory: where, when, and how many neighbours keep what a worker has.

    `schedule` has steps or seconds; None for "auto".
    """

    place: str | os.PathLike[str]
    schedule: Schedule | None
    copies: int


def memory_options(
    every: object, place: object = machine_memory.DEFAULT, copies: object = 1
) -> MemoryOptions | None:
    """Checks the arguments `memory_every`, `memory_dir` and `memory_copies`; raises ValueError for others."""
    place = machine_memory.memory_place(os.environ.get(environment.MEMORY_DIR) or place)
    every = os.environ.get(environment.MEMORY_EVERY) or every
    if isinstance(every, str) and every.isascii() and every.isdigit():
        every = int(every)
    if type(copies) is not int or copies < 0:
        raise ValueError(
            f"Expected memory_copies as the number of neighbours that keep a worker's part, 0 or more. Received: "
            f"{copies!r}."
        )
    if every is None:
        return None
    if every == "auto":
        return MemoryOptions(place, None, copies)
    try:
        schedule = schedule_from(every)
    except ValueError:
        schedule = Schedule()
    if schedule.steps is None and schedule.seconds is None:
        raise ValueError(
            'Expected memory_every to be "auto", a positive number of steps, a time such as "10s" or a timedelta, or '
            f"None. Received: {every!r}."
        )
    return MemoryOptions(place, schedule, copies)
