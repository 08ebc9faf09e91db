"""What happens in a schedule: which jobs start when, who dies, is held up, or is told of errors."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("calm", "crash", "stale", "twice", "faults", "duplicates", "restoring", "everything")

Fault = str | int | None


@dataclass(frozen=True)
class Scenario:
    """What happens in a schedule, beside the order of operations.

    Attributes:
        kind: one of `KINDS`.
        jobs: for each start of the job: how many operations after the beginning, and how many workers it has.
        rounds: saves of each start.
        max_to_keep: see `Retention`.
        keep_every: see `Retention`; steps.
        committers: workers of a job that commit each attempt.
        faults: by worker's name, what befalls which of its operations, by number, or by name and then once.
        rate: share of the operations of every worker that an error befalls.
        readers: workers that do nothing but restore, again and again.
    """

    kind: str
    jobs: tuple[tuple[int, int], ...]
    rounds: int
    max_to_keep: int
    keep_every: int | None
    committers: int
    faults: Mapping[str, Mapping[int | str, Fault]]
    rate: float
    readers: int

    @classmethod
    def of(cls, seed: int) -> Scenario:
        draw = random.Random(f"scenario|{seed}")
        kind = KINDS[seed % len(KINDS)]
        number = seed // len(KINDS)  # goes through the operations in order, so that every one is met
        jobs: tuple[tuple[int, int], ...] = ((0, draw.choice((1, 2, 2))), (draw.randrange(20, 400), 2))
        faults: dict[str, dict[int | str, Fault]] = {}
        rate = 0.0
        committers = 1
        victim = draw.choice(("job0.w0", "job0.w0", "job0.w1"))
        if kind == "crash":
            faults[victim] = {number // 2 % 90: ("crash-before", "crash-after")[number % 2]}
        if kind in ("stale", "everything"):
            faults["job0.w0"] = {number // 4 % 90: draw.randrange(30, 600)}
            if number % 4:  # the moment between the look at the fence and the manifest
                faults["job0.w0"] = {
                    "create MANIFEST.json": draw.choice(("held-up", draw.randrange(30, 600)))
                }
            if number % 4 == 3:  # the same where the other one does not tidy up behind it
                committers = 2
                jobs = ((0, 2), jobs[1])
                faults["job0.w1"] = {"create MANIFEST.json": draw.choice(("held-up", "held-up, dies"))}
                faults["job0.w0"] = {"create MANIFEST.json": "crash-before"}
        if kind in ("twice", "restoring"):
            jobs = ((0, draw.choice((1, 2))), (draw.randrange(0, 40), draw.choice((1, 2))))
        if kind == "restoring":
            faults["reader0"] = {number % 40: draw.randrange(20, 200)}
            faults["job1.w0"] = {number % 6: draw.randrange(20, 200)}
        if kind == "faults":
            rate = draw.choice((0.01, 0.03, 0.1))
        if kind in ("duplicates", "everything"):
            committers = 2
            faults.setdefault("job0.w1", {})[number % 60] = draw.randrange(10, 300)
        if kind == "everything":
            rate = draw.choice((0.0, 0.02))
            victim = draw.choice(("job1.w0", "job1.w1", "job0.w1"))
            faults.setdefault(victim, {})[draw.randrange(90)] = draw.choice(("crash-before", "crash-after"))
            jobs = (jobs[0], (draw.randrange(20, 200), 2), (draw.randrange(150, 500), 1))
        if kind == "calm":
            jobs, committers = ((0, draw.choice((1, 2, 3))),), draw.choice((1, 2))
        return cls(
            kind=kind,
            jobs=jobs,
            rounds=draw.choice((2, 3, 4)),
            max_to_keep=draw.choice((1, 1, 2)),
            keep_every=draw.choice((None, None, 30)),
            committers=committers,
            faults=faults,
            rate=rate,
            readers=1 if kind == "restoring" else 0,
        )


def seeds_of(kind: str, count: int) -> range:
    """Returns the first seeds whose schedules are of one kind."""
    return range(KINDS.index(kind), count * len(KINDS), len(KINDS))
