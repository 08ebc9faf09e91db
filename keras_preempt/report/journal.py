"""What happened in a run, event by event, in words: for the page, and for whoever watches. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from keras_preempt.process.words import counted
from keras_preempt.report.account import Account, Incarnation, Notice, Save
from keras_preempt.report.life import End, Life
from keras_preempt.report.tables import clock, ended, length, lost, some

MOST = 400
"""Entries of a page; of more, the oldest saves and notices are left out."""

_FOLDED = 4
"""Entries of a kind in a row that a page folds into one."""

_HOSTS_NAMED = 3
_NOTABLE = (End.FAILED, End.KILLED, End.SILENT)


@dataclass(frozen=True)
class Entry:
    """One thing that happened.

    Attributes:
        key: Tells it from all others of the run, now and later: letters, digits and '-'.
        at: When, in seconds since 1970.
        start: The number of the start.
        what: A word: "start", "train", "notice", "save", "end" or "worker".
        words: The same in words.
        end: How that start or worker ended, if it did.
        alike: The same for entries of a kind, in words; empty for those that are always shown.
    """

    key: str
    at: float
    start: int
    what: str
    words: str
    end: End | None = None
    alike: str = ""


def entries(account: Account) -> list[Entry]:
    """Returns everything that happened, in the order of time."""
    found: list[Entry] = []
    for start in account.incarnations:
        found += _start(start)
    found += [_notice(notice) for notice in account.notices]
    found += [_save(save) for save in account.saves]
    order = ("start", "train", "notice", "save", "worker", "end")
    distinct = {entry.key: entry for entry in found}.values()
    return sorted(distinct, key=lambda entry: (entry.at, entry.start, order.index(entry.what)))


def shortened(all_entries: Sequence[Entry], needed: Collection[str]) -> list[Entry]:
    """Leaves out the oldest saves and notices, and then whatever is oldest, until `MOST` are left.

    Args:
        all_entries: In the order of time.
        needed: The keys of those that something refers to. They stay as long as anything else can go.
    """
    spare = [
        entry.key for entry in all_entries if entry.key not in needed and entry.what in ("save", "notice")
    ]
    is_spare = set(spare)
    others = [entry.key for entry in all_entries if entry.key not in is_spare]
    without = set([*spare, *others][: max(0, len(all_entries) - MOST)])
    return [entry for entry in all_entries if entry.key not in without]


def folded(shown: Sequence[Entry], needed: Collection[str]) -> Iterator[tuple[str, list[Entry]]]:
    """Yields entries in a row that are of a kind, with what they have in common in words; one by one without words.

    Args:
        shown: In the order of time.
        needed: The keys of those that something refers to; they stand alone.
    """
    for alike, found in itertools.groupby(shown, lambda entry: "" if entry.key in needed else entry.alike):
        row = list(found)
        if alike and len(row) >= _FOLDED:
            yield _in_common(alike, row), row
        else:
            yield from (("", [entry]) for entry in row)


def _in_common(alike: str, row: Sequence[Entry]) -> str:
    apart = statistics.median(after.at - before.at for before, after in itertools.pairwise(row))
    often = f", about every {length(apart)}" if apart >= 1.0 else ""
    return f"{alike}: {len(row)} times{often}; the last one: {row[-1].words}"


def end_key(start: Incarnation) -> str:
    """The key of the entry that says how a start ended."""
    return f"end-{start.number}"


def save_key(start: int, step: int) -> str:
    """The key of a committed checkpoint."""
    return f"save-{start}-{step}"


def notice_key(notice: Notice) -> str:
    """The key of a notice."""
    withdrawn = "-withdrawn" if notice.withdrawn else ""
    return f"notice-{notice.incarnation}-{notice.member}-{round(1000 * notice.at)}{withdrawn}"


def start_key(start: Incarnation) -> str:
    """The key of the beginning of a start."""
    return f"start-{start.number}"


def saved_before(account: Account, start: Incarnation) -> Save | None:
    """Returns the checkpoint that bounds what a start has lost; None if it lost nothing, or everything."""
    if start.kept_until is None:
        return None
    held = [save for save in account.saves if save.step == start.kept_until]
    return held[-1] if held else None


def _start(start: Incarnation) -> list[Entry]:
    number = start.number
    hosts = sorted({life.host for life in start.lives if life.host})
    where = f" on {some(hosts, _HOSTS_NAMED)}" if hosts else ""
    began = f"start {number}: {counted(start.members, 'worker')}{where}"
    found = [Entry(start_key(start), start.began, number, "start", began)]
    known = start.told.course
    if start.first_step is not None and known:
        whence = f", restored from {start.restored}" if start.restored else ""
        trains = f"start {number} trains from step {start.first_step:,}{whence}"
        found.append(Entry(f"train-{number}", known[0].at, number, "train", trains))
    if start.end is End.RUNNING:
        return found
    found += [_worker(life) for life in start.lives if life.end in _NOTABLE]
    cost = f"; steps lost: {lost(start)}" if start.lost_why else ""
    words = f"start {number} {ended(start)}{cost}"
    found.append(Entry(end_key(start), start.ended, number, "end", words, start.end))
    return found


def _worker(life: Life) -> Entry:
    why = f": {life.why}" if life.why and life.end is not End.KILLED else f" {life.why}" if life.why else ""
    words = f"w{life.member} {life.end.value}{why}"
    key = f"worker-{life.incarnation}-{life.member}"
    return Entry(key, life.ended, life.incarnation, "worker", words, life.end)


def _notice(notice: Notice) -> Entry:
    what = "notice withdrawn" if notice.withdrawn else "notice"
    words = f"{what}: {notice.reason} to w{notice.member} ({notice.source})"
    if notice.deadline is not None:
        words += f"; its machine goes in {length(max(0.0, notice.deadline - notice.at))}"
    alike = f"{what}: {notice.reason}"
    return Entry(notice_key(notice), notice.at, notice.incarnation, "notice", words, alike=alike)


def _save(save: Save) -> Entry:
    words = f"step {save.step:,} saved in {length(save.seconds)}"
    if save.missing:
        words += f", without the parts of {some([f'w{member}' for member in save.missing], 3)}"
    alike = "" if save.missing else "saved"
    key = save_key(save.incarnation, save.step)
    return Entry(key, save.at, save.incarnation, "save", words, alike=alike)


def line(entry: Entry, account: Account) -> str:
    """An entry as a line of text, with its time."""
    return f"{clock(entry.at, account.began)} {entry.words}"
