"""The tables of a report, for the terminal and the page; and the report as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from keras_preempt.process.words import counted, some
from keras_preempt.report.account import Account, Worker
from keras_preempt.report.goodput import CAUSES, PRODUCTIVE, badput
from keras_preempt.report.goodput import MEANINGS as CAUSE_MEANINGS
from keras_preempt.report.wording import clock, ended, length, lost, percent, step_range
from keras_preempt.report.worker_run import MEANINGS, RECOMPUTED, TRAIN, UNREPORTED, End

_MOST_WORKERS = 4
"""The most workers that get a column each."""

_MOST_ROWS = 20

_MOST_RANGES = 8

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Column:
    """A column of a table. Its key identifies it, for the style of the page; its title is what readers see."""

    key: str
    title: str
    left: bool = False  # it holds text, which is aligned to the left; the first column always is
    page_only: bool = False  # a terminal has no room for it


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[Column]
    rows: list[list[str]]


def _table(
    title: str,
    rows: Sequence[_Row],
    *columns: tuple[Column, Callable[[_Row], str]],
    most: int | None = _MOST_ROWS,
) -> Table:
    if most is not None and len(rows) > most:
        title, rows = f"{title}; the last {most} of {len(rows)}", rows[-most:]
    texts = [[text(row) for _, text in columns] for row in rows]
    return Table(title, [column for column, _ in columns], texts)


def starts(account: Account) -> Table:
    return _table(
        "Starts of the job",
        account.starts,
        (Column("start", "start"), lambda start: str(start.number)),
        (Column("began", "began"), lambda start: clock(start.began, account.began)),
        (Column("wall", "wall"), lambda start: length(start.ended - start.began)),
        (
            Column("workers", "workers"),
            lambda start: (
                f"{len(start.workers)}" + f"/{start.members}" * (len(start.workers) < start.members)
            ),
        ),
        (Column("steps", "steps"), step_range),
        (Column("lost", "lost"), lost),
        (
            Column("cost", "lost time"),
            lambda start: length(start.lost_seconds) if start.end not in (End.FINISHED, End.RUNNING) else "-",
        ),
        (Column("end", "how it ended", left=True), ended),
        most=None,
    )


def used(account: Account) -> list[str]:
    """Everything that some worker spent time on, in the order of display."""
    there = {span.what for worker in account.workers for span in worker.spans}
    return [what for what in MEANINGS if what in there]


def times(account: Account) -> Table:
    """Goodput and badput, by worker; of many workers the mean and the most.

    What is a part of a cause follows it.
    """
    workers = account.workers
    many = len(workers) > _MOST_WORKERS
    names = ["mean", "most"] if many else [f"w{worker.member}" for worker in workers]
    columns = [
        Column("what", ""),
        *(Column(name, name) for name in names),
        Column("share", "share"),
        Column("meaning", "what it is", left=True, page_only=True),
    ]
    rows = []
    for what, meaning, parts in _spent_on(account):
        values = [sum(worker.seconds(part) for part in parts) for worker in workers]
        shown = [length(value) for value in values]
        if many:
            most = max(range(len(values)), key=lambda index: values[index])
            shown = [length(statistics.fmean(values)), f"{length(values[most])} (w{workers[most].member})"]
        share = sum(values) / account.wall if account.wall else 0.0
        rows.append([what, *shown, percent(share), meaning])
    return Table("Goodput and badput: where the wall time went", columns, rows)


def _spent_on(account: Account) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yields the rows of that table: what wall time was spent on, what that means, and of which spans it is the sum."""
    there = used(account)
    yield PRODUCTIVE, CAUSE_MEANINGS[PRODUCTIVE], (TRAIN,)
    for cause, parts in CAUSES.items():
        if present := [part for part in parts if part in there]:
            yield cause, CAUSE_MEANINGS[cause], present
            if len(parts) > 1:
                yield from ((f"  {part}", MEANINGS[part], (part,)) for part in present if part != cause)
    yield "wall time", "", there


def places(account: Account) -> Table:
    """Where the job ran, and on what: a row for all starts and workers of which that is the same."""
    found: dict[tuple[str, str], tuple[set[int], set[int]]] = {}
    for start in account.starts:
        for worker in start.workers:
            software = ", ".join(f"{name} {version}" for name, version in worker.versions)
            starts_of, workers_of = found.setdefault((worker.host or "?", software or "?"), (set(), set()))
            starts_of.add(start.number)
            workers_of.add(worker.member)
    return _table(
        "Hosts and versions",
        list(found.items()),
        (Column("host", "host"), lambda row: row[0][0]),
        (Column("workers", "workers", left=True), lambda row: _ranges(row[1][1], "w")),
        (Column("starts", "starts", left=True), lambda row: _ranges(row[1][0])),
        (Column("versions", "versions", left=True), lambda row: row[0][1]),
    )


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


def notices(account: Account) -> Table:
    return _table(
        "Notices",
        account.notices,
        (Column("at", "notice at"), lambda notice: clock(notice.at, account.began)),
        (Column("start", "start"), lambda notice: str(notice.incarnation)),
        (Column("worker", "to", left=True), lambda notice: f"w{notice.member}"),
        (
            Column("reason", "what", left=True),
            lambda notice: f"{notice.reason} ({notice.source}){', withdrawn' if notice.withdrawn else ''}",
        ),
        (
            Column("deadline", "machine goes"),
            lambda notice: (
                "-" if notice.deadline is None else f"in {length(max(0.0, notice.deadline - notice.at))}"
            ),
        ),
    )


def saves(account: Account) -> Table:
    return _table(
        f"Saves: {counted(len(account.saves), 'checkpoint')}",
        account.saves,
        (Column("at", "saved at"), lambda save: clock(save.at, account.began)),
        (Column("start", "start"), lambda save: str(save.incarnation)),
        (Column("step", "step"), lambda save: f"{save.step:,}"),
        (Column("seconds", "took"), lambda save: length(save.seconds)),
        (
            Column("missing", "parts missing"),
            lambda save: ", ".join(f"w{each}" for each in save.missing) or "-",
        ),
    )


FORMAT = 1
"""Raised when a field changes its meaning or goes; new fields may come at any time."""

_IN_JSON = {RECOMPUTED: TRAIN, UNREPORTED: "untold", End.SILENT.value: "ended without a word"}
"""What people read under another name than programs, which keep the name that they know."""


def _in_json(name: str) -> str:
    return _IN_JSON.get(name, name)


def _seconds_in_json(worker: Worker) -> dict[str, float]:
    found: dict[str, float] = {}
    for what in MEANINGS:
        if spent := worker.seconds(what):
            found[_in_json(what)] = found.get(_in_json(what), 0.0) + spent
    return found


def account_as_json(account: Account, directory: str) -> dict[str, Any]:
    """Returns the account as JSON data; times are seconds since 1970, lengths of time seconds."""
    return {
        "format": FORMAT,
        "directory": directory,
        "state": _in_json(account.starts[-1].end.value),
        "began": account.began,
        "ended": account.ended,
        "step": account.step,
        "steps_run": account.steps_run,
        "steps_lost": account.lost,
        "steps_lost_exactly": account.lost_exactly,
        "steps_lost_at_most": account.lost_at_most,
        "steps_per_second": account.speed,
        "goodput": account.goodput,
        "seconds": account.wall,
        "productive_seconds": account.productive,
        "badput_seconds": account.badput,
        "starts": [
            {
                "number": start.number,
                "began": start.began,
                "ended": start.ended,
                "workers": [worker.member for worker in start.workers],
                "workers_expected": start.members,
                "end": _in_json(start.end.value),
                "why": start.why,
                "first_step": start.first_step,
                "last_step": start.last_step,
                "steps_run": start.steps_run,
                "steps_lost": start.lost,
                "steps_lost_exactly": start.lost_exactly,
                "steps_lost_at_most": start.lost_at_most,
                "steps_lost_why": start.lost_why,
                "seconds_lost": start.lost_seconds,
                "restored": start.restored,
                "memory_age": start.memory_age,
                "skipped": list(start.skipped),
                "hosts": {str(worker.member): worker.host for worker in start.workers},
                "versions": dict(start.workers[0].versions),
                "course": [[sample.at, sample.step] for sample in start.reference.samples],
            }
            for start in account.starts
        ],
        "workers": [
            {
                "worker": worker.member,
                "wall": worker.wall,
                "useful": worker.useful,
                "goodput": worker.goodput,
                "seconds": _seconds_in_json(worker),
                "badput_seconds": badput([worker]),
                "spans": [{**vars(span), "what": _in_json(span.what)} for span in worker.spans],
            }
            for worker in account.workers
        ],
        "notices": [dict(vars(notice)) for notice in account.notices],
        "saves": [dict(vars(save)) for save in account.saves],
        "missing": list(account.gaps),
    }
