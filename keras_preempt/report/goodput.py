"""Goodput and badput: what wall time was spent on, by cause, and what each interruption cost. Pure.

The words are those of ML goodput. All figures are sums of spans, so that they add up to the wall time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from keras_preempt.report.event import Record, seconds, whole
from keras_preempt.report.job_start import JobStart, Save
from keras_preempt.report.throughput import Sample, split, stretches
from keras_preempt.report.worker_run import (
    COMPILE,
    HANG,
    HOLD,
    IDLE,
    LEAVE,
    RECOMPUTED,
    REPLAY,
    RESTORE,
    SAVE,
    START_UP,
    TRAIN,
    UNACCOUNTED,
    UNREPORTED,
    End,
    Spent,
    WorkerRun,
    turned,
)

PRODUCTIVE = "productive time"

_TRAINING = (TRAIN, RECOMPUTED)

CAUSES: Mapping[str, tuple[str, ...]] = {
    "start": (START_UP, COMPILE),
    "restore": (RESTORE, REPLAY),
    "recomputed steps": (RECOMPUTED,),
    "save": (HOLD, SAVE),
    "hang": (HANG,),
    "exit": (LEAVE,),
    "waiting for machines": (IDLE,),
    "unknown": (UNREPORTED, UNACCOUNTED),
}
"""The causes of badput, in the order of display, and what each consists of. `TRAIN` is productive time."""

MEANINGS: Mapping[str, str] = {
    PRODUCTIVE: "steps, validation and callbacks that did not have to be run again",
    "start": "from the start of the process to the end of the first step",
    "restore": "reading a checkpoint and taking it over, and bringing the input to where it stood",
    "recomputed steps": "steps that had to be run again, or will have to",
    "save": "training stood still for a save",
    "hang": "from the last progress to the end of the processes",
    "exit": "from the end of the fit to the end of the process",
    "waiting for machines": "no process: from the end of one to the start of the next",
    "unknown": "no end is recorded, or events are missing",
}


def badput(spent: Iterable[Spent]) -> dict[str, float]:
    """Returns the seconds that were not productive, by cause; of all together."""
    everybody = list(spent)
    return {
        cause: sum(each.seconds(what) for each in everybody for what in parts)
        for cause, parts in CAUSES.items()
    }


def with_losses(starts: Sequence[JobStart], saves: Sequence[Save]) -> list[JobStart]:
    """Returns the starts, in order, with what each has lost.

    A start keeps the steps before the one at which a later start began, since no later start runs them again. The last
    start, if it ended early, keeps what is committed.
    """
    found: list[JobStart] = []
    limit: int | None = None
    pending = True  # No later start has trained.
    for start in reversed(starts):
        first, last = start.first_step, start.last_step
        if first is None or last is None:
            found.append(start)
            continue
        if pending and start.end not in (End.FINISHED, End.RUNNING):
            committed = [save.step for save in saves if save.incarnation <= start.number]
            limit = max([first, *(step for step in committed if step <= last)])
        found.append(start if limit is None else _with_loss(start, first, last, limit, pending))
        limit = first if limit is None else min(limit, first)
        pending = False
    return found[::-1]


def _with_loss(start: JobStart, first: int, last: int, limit: int, pending: bool) -> JobStart:
    exact = any(worker.exact for worker in start.workers)
    lost = max(0, last - max(first, min(limit, last)))
    if exact and not lost:
        return start
    will = "a start now would continue" if pending else "the next one continued"
    if exact:
        why = f"{will} from step {limit}, and this one had done {last}"
    else:
        why = f"{will} from step {limit}; what this one had done after step {last} is not recorded"
    at_most: int | None = lost
    if not exact:
        ahead = min((worker.ahead for worker in start.workers if worker.ahead is not None), default=None)
        # Events can be lost with a killed process, but not the checkpoint that was restored.
        at_most = None if ahead is None else max(limit, last) + ahead - limit
    return replace(start, lost=lost, lost_exactly=exact, lost_at_most=at_most, lost_why=why, kept_until=limit)


def with_costs(
    starts: Sequence[JobStart], logs: Mapping[tuple[int, int], Sequence[Record]]
) -> list[JobStart]:
    """Tells training that was lost from the rest, and what each interruption has cost.

    `logs` are the events by the numbers of the start and of the worker.
    """
    found: list[JobStart] = []
    following: dict[int, WorkerRun] = {}
    for start in reversed(starts):
        workers = tuple(
            _recomputed(worker, start.kept_until, logs[start.number, worker.member])
            for worker in start.workers
        )
        interrupted = start.end not in (End.FINISHED, End.RUNNING)
        costs = [_lost_seconds(each, following.get(each.member)) for each in workers if interrupted]
        found.append(replace(start, workers=workers, lost_seconds=statistics.fmean(costs or [0.0])))
        following |= {worker.member: worker for worker in workers}
    return found[::-1]


def _recomputed(run: WorkerRun, limit: int | None, log: Sequence[Record]) -> WorkerRun:
    if (
        limit is None
        or run.first_step is None
        or run.last_step is None
        or (run.exact and run.last_step <= limit)
    ):
        return run
    # The last time at which it is known to have done no more than these steps.
    times = [
        seconds(record, "began_at") or float(record["time"])
        for record in log
        if (done := whole(record, "step")) is not None and done <= limit
    ]
    since = _reached(run.samples, limit, max(times, default=run.began))
    return replace(run, spans=turned(run.spans, since, RECOMPUTED, TRAIN))


def _reached(samples: Sequence[Sample], step: int, otherwise: float) -> float:
    """When a step was reached, by samples; `otherwise` if they do not go beyond it."""
    for stretch in stretches(samples):
        if stretch.first <= step < stretch.last:
            return stretch.began if step == stretch.first else split(stretch, step)[0].ended
    return otherwise


def _lost_seconds(run: WorkerRun, following: WorkerRun | None) -> float:
    """What the interruption at the end of `run` cost this worker: from its last step to its next one.

    `following` is its next start, if there is one. Steps that had to be run again count too. If a start has not
    trained, all of its time belongs to the interruption before it.
    """
    stopped = max((span.ended for span in run.spans if span.what in _TRAINING), default=run.ended)
    resumed = run.ended
    if following is not None:
        began = (span.began for span in following.spans if span.what in _TRAINING)
        resumed = min(began, default=following.ended)
    return resumed - stopped + run.seconds(RECOMPUTED)
