"""One start of the job and one of its saves, as a report knows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.report.worker_run import End, WorkerRun


@dataclass(frozen=True)
class Save:
    at: float  # when it was committed, by the first worker that saw it
    incarnation: int
    step: int
    seconds: float  # from the beginning of the save to the commit, of the slowest worker
    missing: tuple[int, ...]  # workers whose part is missing


@dataclass(frozen=True)
class JobStart:
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
    memory_age: float | None = None  # how many seconds before it was saved in memory; None: in the directory
    lost: int = 0  # its steps that had to be run again, or will have to; a lower bound if not `lost_exactly`
    lost_exactly: bool = True
    lost_at_most: int | None = 0  # None if there is no upper bound
    lost_why: str = ""  # also why the number is not known; empty if none were lost
    kept_until: int | None = None  # the step before which nothing was lost; None if nothing was lost at all
    lost_seconds: float = 0.0  # what its end cost a worker, in the mean: from the last step to the next one
