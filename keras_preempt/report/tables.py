"""The tables of a report, as text: for the terminal and for the page alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.spans import MEANINGS
from keras_preempt.report.wording import clock, counted, length, lost, moment, percent, steps, used

_MOST_WORKERS = 4
"""Workers that get a column of their own."""

_MOST_ROWS = 20


@dataclass(frozen=True)
class Table:
    """A title, the names of the columns, and the rows; `left` names the columns of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    left: tuple[str, ...] = ()


def summary(account: Account) -> list[str]:
    """What matters most, in a few lines."""
    wall = account.ended - account.began
    kept = account.steps_run - account.lost
    sure = "" if account.lost_exactly else "at least "
    return [
        f"{moment(account.began)} to {clock(account.ended, account.began)} UTC, {length(wall)}",
        f"steps: {sure}{account.steps_run:,} run, {kept:,} kept, {lost(account.lost, account.lost_exactly)} lost",
        f"goodput: {percent(account.goodput)} of the wall time was training that was kept",
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
            lost(start.lost, start.lost_exactly),
            _ended(start),
        ]
        for start in account.incarnations
    ]
    columns = ["start", "began", "wall", "workers", "steps", "lost", "how it ended"]
    return Table("Starts of the job", columns, rows, ("how it ended",))


def _ended(start: Incarnation) -> str:
    return f"{start.end.value}: {start.why}" if start.why else start.end.value


def times(account: Account) -> Table:
    """Where the wall time went, by worker; of many workers the mean and the largest."""
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


def notices(account: Account) -> Table | None:
    """The notices, if there were any."""
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
    """The committed checkpoints, if there are any."""
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
    """The seconds of a worker by what they went into, in the order of display; what it did not do is left out."""
    return {
        what: worker.seconds(what) for what in MEANINGS if any(span.what == what for span in worker.spans)
    }
