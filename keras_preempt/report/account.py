"""The account of a run: its starts, its workers, the steps that were lost, and where the wall time went.

Times are in seconds since 1970, steps are training steps done.
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.report.worker_run import End, Spent, WorkerRun


@dataclass(frozen=True)
class ReportedNotice:
    """A notice that a worker received, or one that its source withdrew (`withdrawn`)."""

    at: float
    incarnation: int
    member: int
    source: str
    reason: str
    deadline: float | None
    withdrawn: bool


@dataclass(frozen=True)
class Save:
    """A committed checkpoint."""

    at: float  # when it was committed, by the first worker that saw it
    incarnation: int
    step: int
    seconds: float  # from the beginning of the save to the commit, of the slowest worker
    missing: tuple[int, ...]  # workers whose part is missing


@dataclass(frozen=True)
class JobStart:
    """One start of the job."""

    number: int  # from 1
    workers: tuple[WorkerRun, ...]  # those that have events
    members: int  # how many workers there should be
    began: float  # when its first process was started
    ended: float  # when what is known of it ends
    end: End
    why: str  # details of that, in words
    reference: WorkerRun  # the worker whose events say most about how fast it trained
    first_step: int | None  # when it began to train; None if it did not
    last_step: int | None  # when it ended, as far as known
    steps_run: int
    restored: str | None  # the checkpoint that it continued from
    skipped: tuple[str, ...]  # newer checkpoints that could not be used, each with the reason
    lost: int = 0  # its steps that had to be run again, or will have to; a lower bound if not `lost_exactly`
    lost_exactly: bool = True
    lost_at_most: int | None = 0  # None if there is no upper bound
    lost_why: str = ""  # also why the number is not known; empty if none were lost
    kept_until: int | None = None  # the step before which nothing was lost; None if nothing was lost at all


@dataclass(frozen=True)
class Worker(Spent):
    """One worker over all starts."""

    member: int
    useful: float  # seconds of training whose steps did not have to be run again

    @property
    def goodput(self) -> float:
        """The part of its wall time that was useful, from 0 to 1."""
        return self.useful / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class Account:
    """All that is known of a run."""

    starts: tuple[JobStart, ...]
    workers: tuple[Worker, ...]
    notices: tuple[ReportedNotice, ...]
    saves: tuple[Save, ...]
    gaps: tuple[str, ...]  # what is missing in the events, in sentences
    began: float
    ended: float
    goodput: float  # the part of all workers' wall time that was useful, from 0 to 1
    speed: float | None  # steps a second of the time in which steps were trained
    step: int  # done and kept
    steps_run: int  # including those that were run again
    lost: int  # steps that had to be run again, or will have to; a lower bound if not `lost_exactly`
    lost_exactly: bool
    lost_at_most: int | None  # None if there is no upper bound
