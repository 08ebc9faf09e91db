"""One start of a cluster and what it came to, all starts of a job, and the rules for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keras_preempt.cluster.local import WorkerExit
from keras_preempt.cluster.outcome import Outcome, Verdict
from keras_preempt.cluster.status import WorkerStatus
from keras_preempt.process.exit_codes import RESTART_CODES

__all__ = ["Incarnation", "RestartPolicy", "SupervisorReport"]


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
