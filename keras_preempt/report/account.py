"""The account of a run: its starts, its workers, the steps that were lost, and where the wall time went."""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.report.throughput import Stretch, stretches
from keras_preempt.report.worker_run import TRAIN, End, Span, WorkerRun


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
    """A committed checkpoint.

    Attributes:
        at: When it was committed, by the first worker that saw it.
        incarnation: The start that wrote it.
        step: Training steps that it holds.
        seconds: From the beginning of the save to the commit, of the slowest worker.
        missing: Workers whose part is missing.
    """

    at: float
    incarnation: int
    step: int
    seconds: float
    missing: tuple[int, ...]


@dataclass(frozen=True)
class JobStart:
    """One start of the job.

    Attributes:
        number: From 1.
        workers: Those that have events.
        members: How many workers there should be.
        end: How it ended.
        why: Details of that, in words.
        first_step: Training steps done when it began to train; None if it did not begin.
        last_step: Training steps done when it ended, as far as known.
        restored: The checkpoint that it continued from; None if there was none.
        skipped: Newer checkpoints that could not be used, each with the reason.
        lost: Its steps that had to be run again, or will have to; a lower bound if not `lost_exactly`.
        lost_exactly: Whether `lost` is the exact number.
        lost_at_most: An upper bound of them; None if there is none.
        lost_why: Why steps were lost, or why the number is not known, in words; empty if none were lost.
        kept_until: The step before which nothing was lost; None if nothing was lost at all.
    """

    number: int
    workers: tuple[WorkerRun, ...]
    members: int
    end: End
    why: str
    first_step: int | None
    last_step: int | None
    restored: str | None
    skipped: tuple[str, ...]
    lost: int = 0
    lost_exactly: bool = True
    lost_at_most: int | None = 0
    lost_why: str = ""
    kept_until: int | None = None

    @property
    def began(self) -> float:
        """When its first process was started."""
        return min(worker.began for worker in self.workers)

    @property
    def ended(self) -> float:
        """When what is known of it ends."""
        return max(worker.ended for worker in self.workers)

    @property
    def reference(self) -> WorkerRun:
        """The worker whose events say most about how fast it trained."""
        return max(self.workers, key=lambda each: each.samples[-1].step if len(each.samples) > 1 else -1)

    @property
    def throughput(self) -> tuple[Stretch, ...]:
        return stretches(self.reference.samples)

    @property
    def steps_run(self) -> int:
        """Training steps that it has run, as far as known."""
        return max(0, (self.last_step or 0) - (self.first_step or 0)) if self.first_step is not None else 0


@dataclass(frozen=True)
class Worker:
    """One worker over all starts.

    Attributes:
        member: Its number.
        spans: All its time, from the start of its first process to the end of its last one.
        useful: Seconds of training whose steps did not have to be run again.
    """

    member: int
    spans: tuple[Span, ...]
    useful: float

    @property
    def wall(self) -> float:
        """Seconds from the start of its first process to the end of its last one."""
        return self.spans[-1].ended - self.spans[0].began

    @property
    def goodput(self) -> float:
        """The part of its wall time that was useful, from 0 to 1."""
        return self.useful / self.wall if self.wall else 0.0

    def seconds(self, what: str) -> float:
        return sum(span.seconds for span in self.spans if span.what == what)


@dataclass(frozen=True)
class Account:
    """All that is known of a run: its starts, workers, notices and saves, each in order.

    Attributes:
        gaps: What is missing in the events, in sentences.
    """

    starts: tuple[JobStart, ...]
    workers: tuple[Worker, ...]
    notices: tuple[ReportedNotice, ...]
    saves: tuple[Save, ...]
    gaps: tuple[str, ...]

    @property
    def began(self) -> float:
        """When its first process was started."""
        return min(worker.spans[0].began for worker in self.workers)

    @property
    def ended(self) -> float:
        """When what is known of it ends."""
        return max(worker.spans[-1].ended for worker in self.workers)

    @property
    def goodput(self) -> float:
        """The part of all workers' wall time that was useful, from 0 to 1."""
        wall = sum(worker.wall for worker in self.workers)
        return sum(worker.useful for worker in self.workers) / wall if wall else 0.0

    @property
    def step(self) -> int:
        """Training steps done and kept."""
        return (self.starts[-1].last_step or 0) - self.starts[-1].lost

    @property
    def steps_run(self) -> int:
        """Training steps run, including those that were run again."""
        return sum(start.steps_run for start in self.starts)

    @property
    def speed(self) -> float | None:
        """Steps a second of the time in which steps were trained; None if it is not known."""
        steps, seconds = 0, 0.0
        for worker in (start.reference for start in self.starts):
            if len(worker.samples) > 1:
                first, last = worker.samples[0], worker.samples[-1]
                steps += last.step - first.step
                seconds += worker.seconds_within(TRAIN, first.at, last.at)
        return steps / seconds if steps and seconds else None

    @property
    def lost(self) -> int:
        """Steps that had to be run again, or will have to."""
        return sum(start.lost for start in self.starts)

    @property
    def lost_exactly(self) -> bool:
        """Whether `lost` is the exact number and not only a lower bound."""
        return all(start.lost_exactly for start in self.starts)

    @property
    def lost_at_most(self) -> int | None:
        """An upper bound of `lost`; None if there is none."""
        bounds = [start.lost_at_most for start in self.starts]
        return None if None in bounds else sum(bound or 0 for bound in bounds)
