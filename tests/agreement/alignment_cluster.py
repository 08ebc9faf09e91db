"""A small cluster as the explorer sees it: its parameters and the states of its workers and keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Literal, NamedTuple

from keras_preempt.agreement.alignment import At, Call, Member, Plan


class Violation(AssertionError):
    """A guarantee does not hold; the message has the shortest path that shows it."""


class Main(IntEnum):
    """Where a worker's main thread is. From LEFT on it has ended."""

    RUNNING = 0  # in the step after boundary `entered`
    ENTERED = 1  # has incremented `entered`, has not looked at `attention`
    MARKING = 2  # is about to set `held`
    HELD = 3
    ACTING = 4
    LEFT = 5
    FINISHED = 6
    ALONE = 7  # training ended after an aborted round or without coordination
    RAISED = 8  # training's own error
    DEAD = 9


class Watch(IntEnum):
    """Where a worker's watcher thread is."""

    WAITING = 0  # for a call, or for the main thread to end the round
    SEEN = 1  # has set `attention`
    READ = 2  # has read how far the main thread is
    PUBLISHED = 3  # waits for the plan; the caller also for answers
    TORN = 4  # mutant: has read `entered`, not yet `held`
    EARLY = 5  # mutant: has read both, has not set `attention`


class Worker(NamedTuple):
    main: Main
    entered: int
    watch: Watch
    at: At | None
    member: Member | None
    noticed: bool
    calls: int  # calls that it may still make for its notice
    asked: int | None
    released: int  # mutant: the round in which it was released


class Round(NamedTuple):
    number: int
    call: Call | None
    answers: tuple[At | None, ...]
    plan: Plan | None


Keys = tuple[Round, ...]
Mutant = Literal["", "no last boundary rule", "cleared on release", "read before set", "torn read"]


@dataclass(frozen=True)
class Cluster:
    """What to explore.

    Attributes:
        workers: How many.
        steps: Train steps of each; boundary `steps + 1` is the last.
        lockstep: A step completes only when all workers have entered it.
        death: "worker" (one dies at any point), "leader" (with it the coordination), "raise" (one leaves fit
            by an exception between boundaries), or "".
        patience: "death": waits end once somebody is gone; "none": at any time.
        notified: Workers that may get notice, at any time; None is all.
        goes_on: Rounds that worker 0 may call in which training goes on.
        late_notices: Also tell apart whether a worker got notice before it answered another's call.
        reduced: Leave out orders of steps that commute.
    """

    workers: int
    steps: int
    lockstep: bool
    death: Literal["", "worker", "leader", "raise"] = ""
    patience: Literal["death", "none"] = "death"
    notified: frozenset[int] | None = None
    goes_on: int = 0
    late_notices: bool = True
    reduced: bool = False
    mutant: Mutant = ""


class Facts(IntFlag):
    """What a worker's next steps depend on besides its own state and the keys."""

    COMPLETE = 1  # all others have entered the step that it is in
    BROKEN = 2  # somebody who is gone never will
    IMPATIENT = 4  # waits may end
    SILENT = 8  # coordination is gone
