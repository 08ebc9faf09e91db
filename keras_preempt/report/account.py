"""The account of a run, made from its events: its starts, its workers, lost steps, and where the time went. Pure.

Times are in seconds since 1970, steps are training steps done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_preempt.process.words import some
from keras_preempt.report.event import Record, process_began, seconds, whole, words
from keras_preempt.report.goodput import badput, with_costs, with_losses
from keras_preempt.report.job_start import JobStart, Save
from keras_preempt.report.worker_run import (
    IDLE,
    TRAIN,
    UNACCOUNTED,
    End,
    Spent,
    Timeline,
    WorkerRun,
    worker_run,
)

_NAMED = 3
"""Notices, or workers, that a line names one by one."""

_MOST_MEMBERS = 1 << 16  # an event may claim any number

_Logs = Mapping[tuple[int, int], Sequence[Record]]
"""The events by the numbers of the start and of the worker."""


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
class Worker(Spent):
    """One worker over all starts."""

    member: int

    @property
    def useful(self) -> float:
        """Seconds of training whose steps did not have to be run again."""
        return self.seconds(TRAIN)

    @property
    def goodput(self) -> float:
        """The part of its wall time that was useful, from 0 to 1."""
        return self.useful / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class Account:
    starts: tuple[JobStart, ...]
    workers: tuple[Worker, ...]
    notices: tuple[ReportedNotice, ...]
    saves: tuple[Save, ...]
    gaps: tuple[str, ...]  # what is missing in the events, in sentences
    began: float
    ended: float
    speed: float | None  # steps a second of the time in which steps were trained
    step: int  # done and kept
    steps_run: int  # including those that were run again
    lost: int  # steps that had to be run again, or will have to; a lower bound if not `lost_exactly`
    lost_exactly: bool
    lost_at_most: int | None  # None if there is no upper bound

    @property
    def wall(self) -> float:
        """Seconds of all workers together; the productive ones and those of `badput` add up to it."""
        return sum(worker.wall for worker in self.workers)

    @property
    def productive(self) -> float:
        return sum(worker.useful for worker in self.workers)

    @property
    def goodput(self) -> float:
        """The part of all workers' wall time that was productive, from 0 to 1."""
        return self.productive / self.wall if self.wall else 0.0

    @property
    def badput(self) -> dict[str, float]:
        """Seconds that were not productive, by cause, of all workers together."""
        return badput(self.workers)


def account(
    records: Sequence[Record],
    gaps: Sequence[str],
    now: float | None,
    is_alive: Callable[[object], bool | None] = lambda process: None,
) -> Account | None:
    """Accounts for a run, given `events.read` and what is missing in them; None if there are no events of workers.

    Up to `now` a worker without an event of its end is taken to run; None: nothing is running. `is_alive` returns
    whether the process of a name is alive, or None if it cannot know: see `this_process`.
    """
    logs: defaultdict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in records:
        member = whole(record, "member")
        if member is not None:
            logs[record["incarnation"], member].append(record)
    runs, assumed = _worker_runs(logs, now, is_alive)
    if not runs:
        return None
    of_start: defaultdict[int, list[Record]] = defaultdict(list)
    for (number, _), log in logs.items():
        of_start[number] += log
    by_start: defaultdict[int, list[WorkerRun]] = defaultdict(list)
    for run in runs:
        by_start[run.incarnation].append(run)
    starts = [_job_start(number, of_start[number], each) for number, each in sorted(by_start.items())]
    saves = _saves(records)
    starts = with_losses(starts, saves)
    speed = _speed(starts)
    starts = with_costs(starts, logs)
    found = [*gaps, *_missing(starts, logs)]
    if assumed:
        found.append(
            f"{some(assumed, _NAMED)}: no end is recorded, and the process cannot be checked from here: taken as "
            "running until now; if it is over, pass --over"
        )
    workers = _workers(starts)
    bounds = [start.lost_at_most for start in starts]
    return Account(
        starts=tuple(starts),
        workers=tuple(workers),
        notices=tuple(_notices(records)),
        saves=tuple(saves),
        gaps=tuple(found),
        began=min(worker.began for worker in workers),
        ended=max(worker.ended for worker in workers),
        speed=speed,
        step=(starts[-1].last_step or 0) - starts[-1].lost,
        steps_run=sum(start.steps_run for start in starts),
        lost=sum(start.lost for start in starts),
        lost_exactly=all(start.lost_exactly for start in starts),
        lost_at_most=None if None in bounds else sum(bound or 0 for bound in bounds),
    )


def _speed(starts: Sequence[JobStart]) -> float | None:
    steps, seconds_of_steps = 0, 0.0
    for worker in (start.reference for start in starts):
        if len(worker.samples) > 1:
            first, last = worker.samples[0], worker.samples[-1]
            steps += last.step - first.step
            seconds_of_steps += worker.seconds(TRAIN, first.at, last.at)
    return steps / seconds_of_steps if steps and seconds_of_steps else None


def _worker_runs(
    logs: _Logs, now: float | None, is_alive: Callable[[object], bool | None]
) -> tuple[list[WorkerRun], list[str]]:
    """Follows all workers through all starts; also returns the workers that are only assumed to run."""
    last = max((number for number, _ in logs), default=0)
    hung: dict[int, float] = {}
    for (number, _), log in logs.items():
        since_when = [
            record["time"] - (seconds(record, "seconds") or 0.0)
            for record in log
            if record["event"] == "hang"
        ]
        hung[number] = min([*since_when, hung.get(number, math.inf)])
    began: defaultdict[int, list[float]] = defaultdict(list)
    starts_of: defaultdict[int, list[int]] = defaultdict(list)
    for number, member in sorted(logs):
        began[number].append(process_began(logs[number, member]))
        starts_of[member].append(number)
    found: list[WorkerRun] = []
    assumed: list[str] = []
    for member, numbers in starts_of.items():
        since: float | None = None
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            log = logs[number, member]
            if following is not None:
                replaced_at: float | None = process_began(logs[following, member])
            else:
                replaced_at = min((min(at) for other, at in began.items() if other > number), default=None)
            process = next((record.get("process") for record in log if record["event"] == "start"), None)
            alive = is_alive(process) if number == last and now is not None else False
            running_until = None if alive is False else now
            run = worker_run(
                log,
                since=since,
                replaced_at=replaced_at,
                running_until=running_until,
                hung_since=hung[number],
            )
            if run is not None:
                found.append(run)
                since = run.ended
                if run.end is End.RUNNING and alive is None:
                    assumed.append(f"w{member}")
    return found, assumed


def _job_start(number: int, records: Sequence[Record], workers: Sequence[WorkerRun]) -> JobStart:
    restore: Record = next((record for record in records if record["event"] == "restore"), {})
    members = [whole(record, "members") or 0 for record in records if record["event"] == "start"]
    skipped = restore.get("skipped")
    first = max((each.first_step for each in workers if each.first_step is not None), default=None)
    last = max((each.last_step for each in workers if each.last_step is not None), default=None)
    end, why = _end(records, workers)
    return JobStart(
        number=number,
        workers=tuple(workers),
        members=max([*members, len(workers)]),
        began=min(worker.began for worker in workers),
        ended=max(worker.ended for worker in workers),
        end=end,
        why=why,
        reference=max(workers, key=lambda each: each.samples[-1].step if len(each.samples) > 1 else -1),
        first_step=first,
        last_step=last,
        steps_run=0 if first is None else max(0, (last or 0) - first),
        restored=words(restore, "checkpoint"),
        memory_age=seconds(restore, "memory_age"),
        skipped=tuple(text[:500] for text in skipped if isinstance(text, str))
        if isinstance(skipped, list)
        else (),
    )


def _end(records: Sequence[Record], workers: Sequence[WorkerRun]) -> tuple[End, str]:
    """How a start ended, whose workers may have ended differently, and details of that in words.

    One may be killed when the others have saved. The others fail when one was killed; but if one has failed by
    itself, the launcher kills the others.
    """
    order = [End.RUNNING, End.HUNG, End.PREEMPTED, End.INTERRUPTED, End.FINISHED]
    order += [End.KILLED, End.SILENT, End.FAILED]
    # As propagation.Origin has it.
    own = [each for each in records if each["event"] == "error" and each.get("origin") == "this worker"]
    if own:
        order.insert(order.index(End.KILLED), End.FAILED)
    end = min((worker.end for worker in workers), key=order.index)
    decisive = [worker for worker in workers if worker.end is end]
    if end in (End.PREEMPTED, End.INTERRUPTED):
        notices = [each for each in _notices(records) if not each.withdrawn]
        distinct = list(dict.fromkeys(f"{notice.reason} to w{notice.member}" for notice in notices))
        more = [f"{len(distinct) - _NAMED} more"] if len(distinct) > _NAMED else []
        return end, "; ".join([*distinct[:_NAMED], *more, decisive[0].why])
    if end is End.FAILED and own:
        return end, f"w{whole(own[0], 'member')}: {words(own[0], 'reason')}"
    return end, "; ".join(f"w{each.member} {each.why}" for each in decisive[:_NAMED] if each.why)


def _workers(starts: Sequence[JobStart]) -> list[Worker]:
    timelines: dict[int, Timeline] = {}
    for start in starts:
        for worker in start.workers:
            timeline = timelines.setdefault(worker.member, Timeline(worker.began))
            timeline.until(worker.began, IDLE)
            for span in worker.spans:
                timeline.until(span.ended, span.what)
    return [Worker(tuple(line.spans), member) for member, line in sorted(timelines.items())]


def _notices(records: Sequence[Record]) -> list[ReportedNotice]:
    return [
        ReportedNotice(
            seconds(record, "received_at") or record["time"],
            record["incarnation"],
            record["member"],
            words(record, "source") or "?",
            words(record, "reason") or "?",
            seconds(record, "deadline"),
            record["event"] == "withdrawn",
        )
        for record in records
        if record["event"] in ("notice", "withdrawn") and whole(record, "member") is not None
    ]


def _saves(records: Sequence[Record]) -> list[Save]:
    began: dict[tuple[object, object, object], float] = {}
    found: dict[tuple[object, object], Save] = {}
    for record in records:
        attempt, step = words(record, "attempt"), whole(record, "step")
        if attempt is None or step is None:
            continue
        key = (record["incarnation"], attempt)
        worker = (*key, whole(record, "member"))
        if record["event"] == "save":
            took = seconds(record, "seconds") or 0.0
            began[worker] = seconds(record, "began_at") or record["time"] - took
        elif record["event"] == "commit":
            took = max(0.0, record["time"] - began.get(worker, record["time"]))
            missing = record.get("missing")
            absent = [each for each in missing if isinstance(each, int)] if isinstance(missing, list) else []
            save = Save(record["time"], record["incarnation"], step, took, tuple(absent))
            known = found.setdefault(key, save)
            if took > known.seconds:
                found[key] = replace(known, seconds=took)
    return list(found.values())


def _missing(starts: Sequence[JobStart], logs: _Logs) -> list[str]:
    found = []
    for start in starts:
        if len(start.workers) < start.members:
            there = {worker.member for worker in start.workers}
            expected = range(min(start.members, _MOST_MEMBERS))
            absent = some([f"w{member}" for member in expected if member not in there], _NAMED)
            found.append(f"start {start.number}: no events of {absent}, out of {start.members} workers")
        for worker in start.workers:
            name = f"start {start.number}, w{worker.member}"
            if not any(record["event"] == "start" for record in logs[start.number, worker.member]):
                found.append(f"{name}: events are missing, so that it is not known when it began")
            unknown = worker.seconds(UNACCOUNTED)
            if unknown > 0:
                found.append(f"{name}: events are missing, so {unknown:.1f} s are not accounted for")
    return found
