"""A small cluster as the explorer sees it: its parameters and the states of its workers and keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from keras_preempt.agreement.member import CallRequest, Member
from keras_preempt.agreement.messages import At, Call, Failure, Plan


class Violation(AssertionError):
    """A guarantee does not hold; the message has the shortest path that shows it."""


class Main(IntEnum):
    """Where a worker's main thread is. From LEFT on it has ended."""

    RUNNING = 0  # in the step after boundary `entered`
    ENTERED = 1  # has incremented `entered`, has not looked at `attention`
    ASKING = 2  # at the last boundary, has a call to put
    MARKING = 3  # at the last boundary, is about to hold
    HELD = 4
    ACTING = 5
    CALLING = 6  # has carried out a plan that goes on, and has a call to put
    LEFT = 7
    FINISHED = 8
    ALONE = 9  # training ended after an aborted round or without coordination
    RAISED = 10  # training's own error
    DEAD = 11


class Watch(IntEnum):
    """Where a worker's watcher thread is."""

    WAITING = 0  # for a call, or for the main thread to end the round
    SEEN = 1  # has set `attention`
    READ = 2  # has read how far the main thread is
    PUBLISHED = 3  # waits for the plan; the caller also for answers
    CALLING = 4  # has taken an aborted plan, and has a call to put
    ENDED = 5
    TORN = 6  # mutant: has read `entered`, not yet `held`
    EARLY = 7  # mutant: has read both, has not set `attention`


Frozen = tuple[Any, ...]
"""The attributes of a `Member`, in the order in which it takes them."""


def frozen(member: Member) -> Frozen:
    """A member as a value that can be compared and hashed; what it did in rounds that are over makes no difference."""
    for name in ("asked", "called", "expected"):
        if getattr(member, name) < member.round:
            setattr(member, name, -1)
    if member.expected < 0:
        member.expected_at, member.expected_after = 0.0, 0
    return tuple(vars(member).values())


def thawed(values: Frozen | None) -> Member:
    """A member of its own, made of what `frozen` returned."""
    assert values is not None
    return Member(*values)


class Worker(NamedTuple):
    main: Main
    entered: int
    watch: Watch
    at: At | None = None
    member: Frozen | None = None  # None: nothing happens in this worker any more
    heard: int = 0  # how much of its script has happened
    time: int = 0  # index into `TIMES`
    announced: bool = False  # a signal handler has announced a notice, and no call has come back yet
    listener: CallRequest | None = None  # what each of its threads has to put
    countdown: CallRequest | None = None
    thread: CallRequest | None = None  # of the main thread
    watcher: CallRequest | None = None


class Round(NamedTuple):
    number: int
    call: Call | Failure | None
    answers: tuple[At | None, ...]
    plan: Plan | None


Keys = tuple[Round, ...]
Step = tuple[str, Worker, Keys]
"""What to call it, the worker after it, the keys after it."""

Mutant = Literal["", "cleared on release", "read before set", "torn read"]

TIMES = (0.0, 95.0, 200.0)
"""What a worker's clock says: when a notice with time comes; when that time is used up; later still."""

RESERVE = 10.0
ENDS_AT = 100.0


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
        scripts: For each worker what it is told, in this order and at any time: "n" a notice without time; "r" one
            with time to train on; "w" the last notice is withdrawn; "s" a signal handler announces a notice; "p" a
            save is due by the clock; "h" a hint; "i" its user interrupts it. Fewer scripts than workers: the others are
            told nothing.
        reduced: Leave out orders of steps that commute.
        mutant: How the threads that are modelled here break the order of their accesses.
    """

    workers: int
    steps: int
    lockstep: bool
    death: Literal["", "worker", "leader", "raise"] = ""
    patience: Literal["death", "none"] = "death"
    scripts: tuple[str, ...] = ("n", "n", "n")
    reduced: bool = False
    mutant: Mutant = ""


class Facts(IntEnum):  # Not flags, whose own arithmetic would take most of the time.
    """What a worker's next steps depend on besides its own state and the keys: bits of an integer."""

    COMPLETE = 1  # all others have entered the step that it is in
    BROKEN = 2  # somebody who is gone never will
    IMPATIENT = 4  # waits may end
    SILENT = 8  # coordination is gone


def round_of(keys: Keys, number: int, workers: int) -> Round:
    """What stands in a round of so many workers."""
    for entry in keys:
        if entry.number == number:
            return entry
    return Round(number, None, (None,) * workers, None)


def put(keys: Keys, changed: Round) -> Keys:
    """The keys with what has changed in one round."""
    if changed.plan is not None:  # no one reads the answers again
        changed = changed._replace(answers=())
    others = [entry for entry in keys if entry.number != changed.number]
    return tuple(sorted([*others, changed], key=lambda entry: entry.number))


def say(request: CallRequest, keys: Keys, workers: int) -> Keys:
    """The keys after a call, which is inserted unless one stands."""
    entry = round_of(keys, request.round, workers)
    return keys if entry.call is not None else put(keys, entry._replace(call=request.call))
