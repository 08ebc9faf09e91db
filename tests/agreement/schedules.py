"""What the simulator is given and what it gives: schedules, random ones among them, and results."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from keras_preempt.agreement.messages import Plan


@dataclass(frozen=True)
class Schedule:
    """One schedule. Times in seconds; a step takes about one.

    Attributes:
        seed: Of all delays.
        members: How many workers.
        steps: Train steps of each.
        lockstep: A step completes only when all have entered it.
        notices: Member, time of the notice, seconds of grace; a member may get several.
        withdrawals: How many seconds after each of the first of these notices it is withdrawn.
        deaths: Member and time.
        delay: Mean delay of a message.
        patience: How long a watcher waits for a plan or for answers.
    """

    seed: int
    members: int
    steps: int
    lockstep: bool
    notices: tuple[tuple[int, float, float], ...] = ()
    withdrawals: tuple[float, ...] = ()
    deaths: tuple[tuple[int, float], ...] = ()
    delay: float = 0.05
    patience: float = 60.0


@dataclass
class Result:
    """What came of a schedule: how each member ended and at which boundaries it acted, by round."""

    ended: list[str]
    acted: list[dict[int, int]]
    plans: dict[int, Plan] = field(default_factory=dict)
    entered_at_call: dict[int, int] = field(default_factory=dict)
    events: int = 0


def random_schedule(seed: int) -> Schedule:
    """A schedule of 2 to 64 members, mostly small ones; half have deaths, a third waits too impatiently."""
    source = random.Random(seed)
    members = min(64, 2 + int(source.expovariate(1 / 5))) if seed % 100 else 64
    steps = source.choice((source.randint(1, 8), source.randint(8, 24)))
    span = 1.2 * steps + 1
    noticed = source.sample(range(members), source.choice((0, 1, 1, 2, members)) if members > 2 else 1)
    close = source.random() < 0.5
    first = source.uniform(0, span)
    notices = tuple(
        (
            i,
            first + source.uniform(0, 0.3) if close else source.uniform(0, span),
            source.choice((0.0, 5.0, 14.0, 20.0, 30.0)),
        )
        for i in noticed
    )
    if source.random() < 0.3:  # A second notice for those who have one, with another deadline.
        notices += tuple(
            (i, when + source.uniform(0, 6), source.choice((0.0, 9.0))) for i, when, _ in notices
        )
    withdrawals = tuple(source.uniform(0, 10) for _ in notices) if source.random() < 0.3 else ()
    dead = source.sample(range(members), source.choice((0, 0, 0, 1, 1, 2)))
    return Schedule(
        seed,
        members,
        steps,
        lockstep=source.random() < 0.6,
        notices=notices,
        withdrawals=withdrawals,
        deaths=tuple((i, source.uniform(0, span)) for i in dead),
        delay=source.choice((0.001, 0.05, 0.5)),
        patience=source.choice((0.3, 20.0, 60.0)),
    )
