"""Why a cluster ended: finished, preempted or failed. Pure: exits in, verdict out."""

from __future__ import annotations

import enum
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_preempt.cluster.local import WorkerExit
from keras_preempt.cluster.status import WorkerStatus
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, RESTART_CODES, signal_name

#: SIGTERM reached a worker that did not handle it yet (or a shell that reports it as 128 + 15).
KILLED_BY_TERM = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM})


class Outcome(enum.Enum):
    """What one incarnation of a cluster came to."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """The outcome, the exit that decided it, and one line for each worker that failed.

    Attributes:
        outcome: what it came to.
        cause: the exit that explains the others, or None if the launcher ended all of them.
        notes: lines for the log, such as "w1 failed (exit code 1) after w0 was killed".
        lost: it failed by nothing but the loss of workers: they were killed, or could not be reached any more, and
            one that was left says so by its exit code (69).
    """

    outcome: Outcome
    cause: WorkerExit | None
    notes: tuple[str, ...]
    lost: bool = False


def judge(exits: Sequence[WorkerExit], restart_codes: Collection[int]) -> Verdict:
    """Decides why a cluster ended.

    A failure that follows another worker's death is that death's consequence, since collectives fail when a
    peer is gone. So the first exit by itself that is neither a success nor a restart code decides: SIGTERM
    before the callback listened is a preemption, like a restart code; another code is a failure. SIGKILL is
    the end of a grace period if some worker left with a restart code, else a failure (often: out of memory).
    A worker that says that it has lost another one never decides, as long as another exit is there that can.

    Args:
        exits: all exits, in the order in which the workers ended.
        restart_codes: exit codes that ask for a restart.
    """
    asked = [e for e in exits if e.code in restart_codes and not e.by_launcher]
    own = [e for e in exits if e.code != 0 and e.code not in restart_codes and not e.by_launcher]
    # Also where the launcher did not wait for it: that one is gone is noticed after seconds.
    lost = [e for e in exits if e.code == EXIT_WORKER_LOST]
    losses = (-signal.SIGKILL, EXIT_WORKER_LOST)
    if asked:
        own = [e for e in own if e.code not in losses]
    own = [e for e in own if e not in lost] or own
    first = own[0] if own else None
    ended = tuple(e for e in exits if e.code != 0 and e.code not in restart_codes)
    if first is not None:
        outcome = Outcome.PREEMPTED if first.code in KILLED_BY_TERM else Outcome.FAILED
        only_lost = bool(lost) and all(e.code in losses for e in own)
        return Verdict(outcome, first, tuple(_describe(e, first) for e in ended), only_lost)
    if asked:
        return Verdict(Outcome.PREEMPTED, asked[0], tuple(_describe(e, asked[0]) for e in ended))
    if all(e.code == 0 for e in exits):
        return Verdict(Outcome.FINISHED, None, ())
    # Only what the launcher itself ended is left: it gave up on the incarnation.
    return Verdict(Outcome.FAILED, None, tuple(_describe(e, None) for e in ended))


def as_told(
    exits: Sequence[WorkerExit], told: Mapping[int, WorkerStatus], wrapped: Collection[int]
) -> tuple[WorkerExit, ...]:
    """Puts the status that a preempted training process has left with in place of that of its wrapper.

    A shell script that goes on after its training (``python train.py; echo over``) ends with 0, ``make`` with 2
    whatever has failed, and a shell that gets the signal itself may die of it. None of that says how training has
    ended, but the training process does. The status of its own process stands, unless it is 0 or the signal, which
    that process cannot have meant.

    Args:
        exits: How the commands have ended.
        told: What the training processes have said last, by worker.
        wrapped: Workers whose training process is not the command itself.
    """
    result = []
    for exit in exits:
        status = told.get(exit.index)
        preempted = status is not None and status.exit_code is not None and not status.finished
        if preempted and (exit.index in wrapped or exit.code == 0 or exit.code in KILLED_BY_TERM):
            assert status is not None
            assert status.exit_code is not None
            exit = replace(exit, code=status.exit_code)
        result.append(exit)
    return tuple(result)


def exit_status(code: int) -> int:
    """Returns an exit code as a shell shows it: 128 + n for a process that signal n ended."""
    return 128 - code if code < 0 else code


def _describe(exit: WorkerExit, cause: WorkerExit | None) -> str:
    name = f"w{exit.index}"
    how = f"exit code {exit.code}" if exit.code >= 0 else signal_name(-exit.code)
    if exit.by_launcher:
        return f"{name} was ended by the launcher ({how})"
    if exit.code < 0 or exit.code in KILLED_BY_TERM:
        return f"{name} was killed ({how})"
    if exit.code == EXIT_WORKER_LOST:
        return f"{name} has lost another worker ({how})"
    if cause is not None and exit is not cause:
        verb = "was killed" if cause.code < 0 or cause.code in KILLED_BY_TERM else "ended"
        return f"{name} failed ({how}) after w{cause.index} {verb}: a consequence"
    return f"{name} failed ({how})"


@dataclass(frozen=True)
class RestartPolicy:
    """When a cluster is started again.

    Attributes:
        restart_codes: exit codes by which a worker asks for it; the first is what the supervisor itself ends
            with when it was told to stop.
        max_restarts_without_progress: restarts in a row that may each fail to save a later step.
        max_failures: crashes after which it is still started again.
        failure_grace: seconds that the others have to end by themselves once a worker has failed.
        incarnation_timeout: seconds that one incarnation may take; None for no limit.
    """

    restart_codes: tuple[int, ...] = RESTART_CODES
    max_restarts_without_progress: int = 3
    max_failures: int = 0
    failure_grace: float = 10.0
    incarnation_timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.restart_codes or not all(0 < code < 256 for code in self.restart_codes):
            raise ValueError(f"Expected restart codes from 1 to 255. Received: {list(self.restart_codes)}.")


@dataclass(frozen=True)
class Incarnation:
    """One start of the cluster, from the first process to the last exit.

    Attributes:
        number: from 0.
        exits: in the order in which the workers ended.
        verdict: why it ended.
        seconds: wall time.
        statuses: what the workers said last, by index; those that were killed are missing.
        listened: workers of which a training process listened for notices, so that steps may have been run.
        address_in_use: a worker reported that its port was taken.
        timed_out: it was ended because it ran for too long.
    """

    number: int
    exits: tuple[WorkerExit, ...]
    verdict: Verdict
    seconds: float
    statuses: Mapping[int, WorkerStatus]
    listened: frozenset[int] = frozenset()
    address_in_use: bool = False
    timed_out: bool = False

    @property
    def safe_step(self) -> int:
        """The step from which the next incarnation can go on; 0 if nobody said that one was saved."""
        return max((status.safe_step for status in self.statuses.values()), default=0)

    @property
    def directory(self) -> str:
        """The run directory in which that step was saved: a script may train one model after the other."""
        furthest = max(self.statuses.values(), key=lambda status: status.safe_step, default=None)
        return "" if furthest is None else furthest.directory

    @property
    def saved(self) -> bool:
        """Whether a worker has said that the checkpoint with which it leaves is committed."""
        return any(status.saved for status in self.statuses.values())

    @property
    def silent(self) -> list[int]:
        """Workers whose training process was killed: it listened, and has not said how its training ended."""
        return sorted(self.listened - self.statuses.keys())


@dataclass(frozen=True)
class SupervisorReport:
    """All incarnations, and the exit code for the whole job.

    Attributes:
        incarnations: in order.
        exit_code: 0 if the job finished.
        reason: one line that says why no further one was started.
        expected: numbers of the incarnations that were ended by a failure, as was to be expected.
    """

    incarnations: tuple[Incarnation, ...]
    exit_code: int
    reason: str
    expected: tuple[int, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """Returns how many incarnations came to ``outcome``."""
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
            f" seconds={self.seconds:.1f} exit code={self.exit_code}"
        )
