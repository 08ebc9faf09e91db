"""What a start of a cluster came to, and when it is started again: without side effects."""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_preempt.cluster.hangs import AUTO, LEAST_HANG, Hang
from keras_preempt.cluster.local import WorkerExit
from keras_preempt.cluster.status import WorkerStatus
from keras_preempt.cluster.worker import UNHEARD_GRACE
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, EXIT_WORKER_LOST, RESTART_CODES, signal_name

#: SIGTERM reached a worker that did not handle it yet (or a shell that reports it as 128 + 15).
KILLED_BY_TERM = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM})

#: JAX's coordination service ends a process this way, from a thread of its own, when process 0 or the heartbeats of
#: another are gone; nothing in Python can catch it. By itself it is a failure like any other.
ABORTED = frozenset({-signal.SIGABRT, 128 + signal.SIGABRT})

#: Older versions of JAX end it with this status instead. A worker that Python ends has said so before.
ABORTED_UNSAID = 1

#: Somebody pressed Ctrl-C, whether the worker has saved or not: it is not started again.
INTERRUPTED = frozenset({-signal.SIGINT, EXIT_INTERRUPTED})


class Outcome(enum.Enum):
    """What one incarnation of a cluster came to."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"
    HUNG = "hung"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Verdict:
    """Why a start of the cluster ended.

    Attributes:
        outcome: Finished, preempted, failed, hung or interrupted.
        cause: The exit that explains the others; None if nobody failed, or the launcher ended them all.
        notes: Lines for the log, such as "w1 failed (exit code 1) after w0 was killed".
        lost: Whether it failed only because workers were lost: they were killed or could not be reached any more, and
            a survivor says so by its exit code (69), or was aborted for it.
    """

    outcome: Outcome
    cause: WorkerExit | None
    notes: tuple[str, ...]
    lost: bool = False


def judge(
    exits: Sequence[WorkerExit], restart_codes: Collection[int], unsaid: Collection[int] = ()
) -> Verdict:
    """Decides why a cluster ended.

    A failure that follows the death of another worker is a consequence of it, since collectives fail when a peer is
    gone. So the first exit decides that the launcher did not cause and that is neither a success nor a restart code:
    SIGTERM before the callback listened is a preemption, like a restart code; SIGINT is Ctrl-C; another code is a
    failure. SIGKILL is the end of a grace period if some worker left with a restart code, else a failure (often: out of
    memory). An exit that says "another worker was lost" decides only if no other exit can. The same holds for one that
    was aborted after another worker had ended: on JAX that is what becomes of survivors.

    Args:
        exits: All exits, in the order in which the workers ended.
        restart_codes: Exit codes that ask for a restart.
        unsaid: Workers that have begun a fit and have not said how it ended.
    """
    asked = [e for e in exits if e.code in restart_codes and not e.by_launcher]
    own = [e for e in exits if e.code != 0 and e.code not in restart_codes and not e.by_launcher]
    # Also where the launcher did not wait for it: it takes seconds to notice that a worker is gone.
    aborted = [e for e in exits if e.code in ABORTED or (e.code == ABORTED_UNSAID and e.index in unsaid)]
    lost = [e for e in exits if e.code == EXIT_WORKER_LOST or (e in aborted and _has_lost(e, exits, aborted))]
    if asked:
        own = [e for e in own if e.code != -signal.SIGKILL and e not in lost]
    own = [e for e in own if e not in lost] or own
    cause = own[0] if own else asked[0] if asked else None
    notes = [_describe(e, cause, e in lost) for e in exits if e.code != 0 and e.code not in restart_codes]
    if own:
        outcome = Outcome.PREEMPTED if own[0].code in KILLED_BY_TERM else Outcome.FAILED
        outcome = Outcome.INTERRUPTED if own[0].code in INTERRUPTED else outcome
    elif asked:
        outcome = Outcome.PREEMPTED
    else:  # If they did not all end well, the launcher has ended the others: it gave up on the incarnation.
        outcome = Outcome.FINISHED if all(e.code == 0 for e in exits) else Outcome.FAILED
    only_lost = bool(own and lost) and all(e.code == -signal.SIGKILL or e in lost for e in own)
    return Verdict(outcome, cause, tuple(notes), only_lost)


def _has_lost(exit: WorkerExit, exits: Sequence[WorkerExit], aborted: Sequence[WorkerExit]) -> bool:
    """Whether a worker was aborted after another one had ended by itself, and not with 0."""
    # Where one was killed, the order does not count: the others are aborted within milliseconds.
    others = [e for e in exits if e.code != 0 and e not in aborted and not e.by_launcher]
    return any(e.code == -signal.SIGKILL or e.at <= exit.at for e in others)


def as_reported(
    exits: Sequence[WorkerExit], statuses: Mapping[int, WorkerStatus], wrapped: Collection[int]
) -> tuple[WorkerExit, ...]:
    """Replaces the exit code of a wrapper by the status with which its preempted training process left.

    A shell script that goes on after its training (``python train.py; echo over``) ends with 0, ``make`` ends with 2
    whatever has failed, and a shell that gets the signal itself may die of it. Only the training process says how
    training ended. Where that is the command itself (the worker is not `wrapped`), its exit code stands, unless it is 0
    or a death by SIGTERM, which contradict what it has said.
    """
    result = []
    for exit in exits:
        status = statuses.get(exit.index)
        preempted = None if status is None or status.finished else status.exit_code
        replaced = exit.index in wrapped or exit.code == 0 or exit.code in KILLED_BY_TERM
        result.append(exit if preempted is None or not replaced else replace(exit, code=preempted))
    return tuple(result)


def exit_status(code: int) -> int:
    """An exit code as a shell shows it: 128 + n for a process that signal n ended."""
    return 128 - code if code < 0 else code


def _describe(exit: WorkerExit, cause: WorkerExit | None, lost: bool) -> str:
    name = f"w{exit.index}"
    how = f"exit code {exit.code}" if exit.code >= 0 else signal_name(-exit.code)
    if exit.by_launcher:
        return f"{name} was ended by the launcher ({how})"
    if exit.code in INTERRUPTED:
        return f"{name} was interrupted ({how})"
    if lost:
        return f"{name} has lost another worker ({how})"
    if exit.code < 0 or exit.code in KILLED_BY_TERM:
        return f"{name} was killed ({how})"
    if cause is not None and exit is not cause:
        verb = "was killed" if cause.code < 0 or cause.code in KILLED_BY_TERM else "ended"
        return f"{name} failed ({how}) after w{cause.index} {verb}: a consequence"
    return f"{name} failed ({how})"


@dataclass(frozen=True)
class RestartPolicy:
    """The rules by which a cluster is started again.

    Attributes:
        restart_codes: Exit codes by which a worker asks for a restart. The supervisor itself exits with the first when
            it was told to stop.
        max_restarts_without_progress: Restarts in a row that may save no later step.
        max_failures: Crashes after which the cluster is still started again.
        failure_grace: Seconds that the others have to end by themselves once a worker has failed. TensorFlow tells them
            of a loss only after 10 s; with less time they would be ended before they can say so (69). JAX tells those
            that wait for the lost one at once, and others after its heartbeat timeout (100 s, unless the script says
            otherwise), before which they are ended.
        incarnation_timeout: Seconds that one incarnation may take; None for no limit.
        unheard_grace: Seconds after SIGTERM until a worker that does not listen for notices, and has not ended (as
            after ``jax.distributed.initialize``), is killed. One that listens is never killed for taking its time.
        said_grace: Seconds after a worker has said with which status it exits after a preemption, until it is killed
            and the incarnation has failed; None for no limit.
        time_limit: Seconds from the start of the launcher's process in which the whole job has to end; None for no
            limit. Workers are told, and save and leave before that. One that has not left then gets SIGTERM, and
            SIGKILL `failure_grace` later.
        hang: When a job hangs, so that all its workers are ended and started again: a number of seconds for which one
            does not come on; "auto" for limits by what it is doing, learned from what was seen; None: never.
    """

    restart_codes: tuple[int, ...] = RESTART_CODES
    max_restarts_without_progress: int = 3
    max_failures: int = 0
    failure_grace: float = 30.0
    incarnation_timeout: float | None = None
    unheard_grace: float = UNHEARD_GRACE
    said_grace: float | None = None
    time_limit: float | None = None
    hang: float | str | None = None

    def __post_init__(self) -> None:
        if not self.restart_codes or not all(0 < code < 256 for code in self.restart_codes):
            raise ValueError(f"Expected restart codes from 1 to 255. Received: {list(self.restart_codes)}.")
        number = isinstance(self.hang, (int, float)) and not isinstance(self.hang, bool)
        if not (self.hang in (None, AUTO) or (number and LEAST_HANG <= float(self.hang or 0) < math.inf)):
            raise ValueError(
                f"Expected hang to be 'auto', None, or {LEAST_HANG:g} s or more. Received: {self.hang!r}. A worker is "
                "looked at once a second."
            )


@dataclass(frozen=True)
class Incarnation:
    """One start of the cluster, from the first process to the last exit.

    Attributes:
        number: From 0.
        exits: In the order in which the workers ended.
        verdict: Why it ended.
        seconds: Wall time.
        statuses: What the workers said last, by index; workers that were killed are missing.
        listened: Workers whose training process listened for notices, so that they may have run steps.
        address_in_use: Whether a worker reported that its port was taken.
        timed_out: Whether it was ended because it ran for too long.
        in_memory: The step of the newest checkpoint in the memory of the machines; 0 for none.
        stuck: Workers that were killed since they had said their exit status and did not end; with that status.
        hang: Where the workers stood when it was ended because they did not come on; None if it was not.
    """

    number: int
    exits: tuple[WorkerExit, ...]
    verdict: Verdict
    seconds: float
    statuses: Mapping[int, WorkerStatus]
    listened: frozenset[int] = frozenset()
    address_in_use: bool = False
    timed_out: bool = False
    stuck: Mapping[int, int] = field(default_factory=dict)
    in_memory: int = 0
    hang: Hang | None = None

    @property
    def safe_step(self) -> int:
        """The step from which the next incarnation can continue; 0 if no worker said that one was saved."""
        return max(self.in_memory, *(status.safe_step for status in self.statuses.values()), 0)

    @property
    def lost(self) -> bool:
        """Whether it failed only because workers were lost, and the next one can continue."""
        killed = {-signal.SIGKILL, 128 + signal.SIGKILL}
        alone = len(self.exits) == 1 and self.exits[0].code in killed and self.in_memory > 0
        return alone or (self.verdict.lost and self.safe_step > 0)

    @property
    def directory(self) -> str:
        """The run directory in which that step was saved. A script may train several models."""
        furthest = max(self.statuses.values(), key=lambda status: status.safe_step, default=None)
        return "" if furthest is None else furthest.directory

    @property
    def saved(self) -> bool:
        """Whether a worker said that the checkpoint of its exit is committed."""
        return any(status.saved for status in self.statuses.values())

    @property
    def out_of_time(self) -> bool:
        """Whether a worker left since the time of the whole job is over: as it was told, or the scheduler says."""
        return any(status.out_of_time for status in self.statuses.values())

    @property
    def silent(self) -> list[int]:
        """Workers whose training process was killed: it listened, and did not say how its training ended."""
        return sorted(self.listened - self.statuses.keys())


@dataclass(frozen=True)
class SupervisorReport:
    """All incarnations, and the exit code for the whole job.

    Attributes:
        incarnations: In order.
        exit_code: 0 if the job finished.
        reason: One line that says why no further one was started.
        expected: Numbers of the incarnations that ended by a failure that was expected.
    """

    incarnations: tuple[Incarnation, ...]
    exit_code: int
    reason: str
    expected: tuple[int, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many incarnations came to ``outcome``."""
        return sum(incarnation.verdict.outcome is outcome for incarnation in self.incarnations)

    @property
    def seconds(self) -> float:
        """Wall time of all incarnations together."""
        return sum(incarnation.seconds for incarnation in self.incarnations)

    @property
    def summary(self) -> str:
        """One line: incarnations, preemptions, failures, exit code."""
        expected = len(self.expected)
        return (
            f"{self.reason}: incarnations={len(self.incarnations)}"
            f" preemptions={self.count(Outcome.PREEMPTED)}{f' killed={expected}' if expected else ''}"
            f" failures={self.count(Outcome.FAILED) - expected}"
            f"{f' hangs={hangs}' if (hangs := self.count(Outcome.HUNG)) else ''}"
            f" seconds={self.seconds:.1f} exit code={self.exit_code}"
        )
