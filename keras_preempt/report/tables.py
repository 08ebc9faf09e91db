"""The words and tables of a report, for the terminal and the page; and the report as JSON."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.process.words import counted
from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.life import MEANINGS, End


def moment(at: float) -> str:
    """A time in UTC, such as "2026-11-21 15:43:34"."""
    return _utc(at).strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float, since: float) -> str:
    """A time in UTC; only the time of the day if it is on the day of `since`."""
    same_day = _utc(at).date() == _utc(since).date()
    return _utc(at).strftime("%H:%M:%S" if same_day else "%m-%d %H:%M:%S")


def length(seconds: float) -> str:
    """A length of time, such as "5.36 s", "12 min 05 s" or "3 h 07 min"."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def percent(part: float) -> str:
    """A fraction in percent, with one decimal."""
    return f"{100 * part:.1f} %"


def speed(value: float) -> str:
    """Steps a second, such as "12.3" or "1,234"."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def some(items: Sequence[str], most: int) -> str:
    """Names the first `most` of some things, and says how many more there are."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def lost(of: Incarnation | Account) -> str:
    """A number of lost steps, such as "8", "at most 20", "8 to 20", "at least 8" or "unknown"."""
    if of.lost_exactly:
        return f"{of.lost:,}"
    if of.lost_at_most is None:
        return f"at least {of.lost:,}" if of.lost else "unknown"
    return f"{of.lost:,} to {of.lost_at_most:,}" if of.lost else f"at most {of.lost_at_most:,}"


def steps(start: Incarnation) -> str:
    """The first and the last step of a start."""
    if start.first_step is None or start.last_step is None:
        return "-"
    open_end = "+" if start.end is not End.FINISHED and not any(life.exact for life in start.lives) else ""
    return f"{start.first_step}-{start.last_step}{open_end}"


def headline(account: Account) -> str:
    """The state of the run in one line."""
    last = account.incarnations[-1]
    state = {
        End.FINISHED: "finished",
        End.RUNNING: "running",
        End.PREEMPTED: "preempted, not started again",
        End.INTERRUPTED: "interrupted by Ctrl-C",
        End.FAILED: "failed",
        End.KILLED: "killed, not started again",
        End.SILENT: "ended without a word",
    }[last.end]
    starts = counted(len(account.incarnations), "start")
    workers = counted(len(account.workers), "worker")
    return f"{state} at step {account.step:,} after {starts} of {workers}"


def losses(account: Account) -> list[str]:
    """The steps that were lost and why, one line for each start that lost some."""
    return [lost_steps(start) for start in account.incarnations if start.lost_why]


def lost_steps(start: Incarnation) -> str:
    """The steps that a start has lost, and why."""
    count = lost(start)
    what = "may have lost steps" if count == "unknown" else f"lost {count} step{'' if count == '1' else 's'}"
    return f"start {start.number} {what}: {start.lost_why}"


def used(account: Account) -> list[str]:
    """Everything that some worker spent time on, in the order of display."""
    there = {span.what for worker in account.workers for span in worker.spans}
    return [what for what in MEANINGS if what in there]


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc)


_MOST_WORKERS = 4
"""The most workers that get a column each."""

_MOST_ROWS = 20

_MOST_RANGES = 8


@dataclass(frozen=True)
class Table:
    """A title, the names of the columns, and the rows; `left` names the columns of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    left: tuple[str, ...] = ()


def summary(account: Account) -> list[str]:
    """The most important figures, in a few lines."""
    wall = account.ended - account.began
    kept = account.steps_run - account.lost
    sure = "" if account.lost_exactly else "at least "
    return [
        f"{moment(account.began)} to {clock(account.ended, account.began)} UTC, {length(wall)}",
        f"steps: {sure}{account.steps_run:,} run, {kept:,} kept, {lost(account)} lost",
        f"goodput: {percent(account.goodput)} of the wall time was training that was kept",
        *(
            []
            if account.speed is None
            else [f"speed: {speed(account.speed)} steps a second while it trained"]
        ),
    ]


def starts(account: Account) -> Table:
    """Every start of the job."""
    rows = [
        [
            str(start.number),
            clock(start.began, account.began),
            length(start.ended - start.began),
            str(len(start.lives)) + ("" if len(start.lives) == start.members else f"/{start.members}"),
            steps(start),
            lost(start),
            ended(start),
        ]
        for start in account.incarnations
    ]
    columns = ["start", "began", "wall", "workers", "steps", "lost", "how it ended"]
    return Table("Starts of the job", columns, rows, ("how it ended",))


def ended(start: Incarnation) -> str:
    """How a start ended, in words."""
    return f"{start.end.value}: {start.why}" if start.why else start.end.value


def times(account: Account) -> Table:
    """Where the wall time went, by worker; of many workers the mean and the most."""
    workers = account.workers
    whats = used(account)
    wall = sum(worker.wall for worker in workers)

    def row(name: str, values: Sequence[float], share: float | None) -> list[str]:
        shown = [length(value) for value in values]
        if len(workers) > _MOST_WORKERS:
            most = max(range(len(values)), key=lambda index: values[index])
            shown = [length(statistics.fmean(values)), f"{length(values[most])} (w{workers[most].member})"]
        return [name, *shown, "" if share is None else percent(share)]

    rows = []
    for what in whats:
        seconds = [worker.seconds(what) for worker in workers]
        rows.append([*row(what, seconds, sum(seconds) / wall if wall else 0.0), MEANINGS[what]])
    rows.append([*row("wall", [worker.wall for worker in workers], 1.0), ""])
    names = ["mean", "most"] if len(workers) > _MOST_WORKERS else [f"w{worker.member}" for worker in workers]
    return Table("Where the wall time went", ["", *names, "share", "what it is"], rows, ("what it is",))


def places(account: Account) -> Table:
    """Where the job ran, and on what: a row for all starts and workers of which that is the same."""
    found: dict[tuple[str, str], tuple[set[int], set[int]]] = {}
    for start in account.incarnations:
        for life in start.lives:
            software = ", ".join(f"{name} {version}" for name, version in life.versions)
            starts_of, workers_of = found.setdefault((life.host or "?", software or "?"), (set(), set()))
            starts_of.add(start.number)
            workers_of.add(life.member)
    rows = [
        [host, _ranges(workers_of, "w"), _ranges(starts_of), software]
        for (host, software), (starts_of, workers_of) in found.items()
    ]
    columns = ["host", "workers", "starts", "versions"]
    return _shortened(Table("Hosts and versions", columns, rows, ("workers", "starts", "versions")))


def _ranges(numbers: Collection[int], prefix: str = "") -> str:
    """Names numbers, such as "1-4, 7"."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    named = [f"{prefix}{a}" if a == b else f"{prefix}{a}-{prefix}{b}" for a, b in runs]
    return some(named, _MOST_RANGES)


def notices(account: Account) -> Table | None:
    """The notices; None if there were none."""
    if not account.notices:
        return None
    rows = [
        [
            clock(notice.at, account.began),
            str(notice.incarnation),
            f"w{notice.member}",
            f"{notice.reason} ({notice.source})" + (", withdrawn" if notice.withdrawn else ""),
            "-" if notice.deadline is None else f"in {length(max(0.0, notice.deadline - notice.at))}",
        ]
        for notice in account.notices
    ]
    columns = ["notice at", "start", "to", "what", "machine goes"]
    return _shortened(Table("Notices", columns, rows, ("to", "what")))


def saves(account: Account) -> Table | None:
    """The committed checkpoints; None if there are none."""
    if not account.saves:
        return None
    rows = [
        [
            clock(save.at, account.began),
            str(save.incarnation),
            f"{save.step:,}",
            length(save.seconds),
            ", ".join(f"w{member}" for member in save.missing) or "-",
        ]
        for save in account.saves
    ]
    columns = ["saved at", "start", "step", "took", "parts missing"]
    return _shortened(Table(f"Saves: {counted(len(rows), 'checkpoint')}", columns, rows))


def _shortened(table: Table) -> Table:
    left_out = len(table.rows) - _MOST_ROWS
    if left_out <= 0:
        return table
    title = f"{table.title}; the last {_MOST_ROWS} of {len(table.rows)}"
    return Table(title, table.columns, table.rows[left_out:], table.left)


def shares(worker: Worker) -> dict[str, float]:
    """The seconds of a worker by what it spent them on, in the order of display, without what it did not do."""
    return {
        what: worker.seconds(what) for what in MEANINGS if any(span.what == what for span in worker.spans)
    }


FORMAT = 1
"""Raised when a field changes its meaning or goes; new fields may come at any time."""


def account_as_json(account: Account, directory: str) -> dict[str, Any]:
    """Returns the account as JSON data; times are seconds since 1970, lengths of time seconds."""
    return {
        "format": FORMAT,
        "directory": directory,
        "state": account.incarnations[-1].end.value,
        "began": account.began,
        "ended": account.ended,
        "step": account.step,
        "steps_run": account.steps_run,
        "steps_lost": account.lost,
        "steps_lost_exactly": account.lost_exactly,
        "steps_lost_at_most": account.lost_at_most,
        "steps_per_second": account.speed,
        "goodput": account.goodput,
        "starts": [_start(start) for start in account.incarnations],
        "workers": [_worker(worker) for worker in account.workers],
        "notices": [dict(vars(notice)) for notice in account.notices],
        "saves": [dict(vars(save)) for save in account.saves],
        "missing": list(account.gaps),
    }


def _start(start: Incarnation) -> dict[str, Any]:
    return {
        "number": start.number,
        "began": start.began,
        "ended": start.ended,
        "workers": [life.member for life in start.lives],
        "workers_expected": start.members,
        "end": start.end.value,
        "why": start.why,
        "first_step": start.first_step,
        "last_step": start.last_step,
        "steps_run": start.steps_run,
        "steps_lost": start.lost,
        "steps_lost_exactly": start.lost_exactly,
        "steps_lost_at_most": start.lost_at_most,
        "steps_lost_why": start.lost_why,
        "restored": start.restored,
        "skipped": list(start.skipped),
        "hosts": {str(life.member): life.host for life in start.lives},
        "versions": dict(start.lives[0].versions),
        "course": [[mark.at, mark.step] for mark in start.told.course],
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "worker": worker.member,
        "wall": worker.wall,
        "useful": worker.useful,
        "goodput": worker.goodput,
        "seconds": shares(worker),
        "spans": [dict(vars(span)) for span in worker.spans],
    }
