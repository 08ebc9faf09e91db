"""What happened in a run, event by event, in words: for the page, and for whoever watches. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from keras_preempt.process.words import counted, some
from keras_preempt.report.account import Account, ReportedNotice
from keras_preempt.report.job_start import JobStart, Save
from keras_preempt.report.wording import clock, ended, length, lost
from keras_preempt.report.worker_run import End

MOST = 400
"""Entries of a page; of more, the oldest saves and notices are left out."""

_FOLDED = 4
"""Entries of a kind in a row that a page folds into one."""

_NAMED = 3  # hosts, or workers

_ORDER = ("start", "train", "notice", "save", "worker", "end")


@dataclass(frozen=True)
class Entry:
    key: str  # identifies it among all entries of the run, now and later: letters, digits and '-'
    at: float  # in seconds since 1970
    start: int  # the number of the start
    what: str  # one of `_ORDER`
    words: str  # the same in words
    end: End | None = None  # how that start or worker ended, if it did
    alike: str = ""  # the same for entries of a kind, in words; empty for those that are always shown


def entries(account: Account) -> list[Entry]:
    found = [entry for start in account.starts for entry in _of_start(start)]
    for notice in account.notices:
        alike = f"{'notice withdrawn' if notice.withdrawn else 'notice'}: {notice.reason}"
        words = f"{alike} to w{notice.member} ({notice.source})"
        if notice.deadline is not None:
            words += f"; its machine goes in {length(max(0.0, notice.deadline - notice.at))}"
        found.append(Entry(notice_key(notice), notice.at, notice.incarnation, "notice", words, alike=alike))
    for save in account.saves:
        words = f"step {save.step:,} saved in {length(save.seconds)}"
        if save.missing:
            words += f", without the parts of {some([f'w{member}' for member in save.missing], _NAMED)}"
        alike = "" if save.missing else "saved"
        found.append(Entry(save_key(save), save.at, save.incarnation, "save", words, alike=alike))
    distinct = {entry.key: entry for entry in found}.values()
    return sorted(distinct, key=lambda entry: (entry.at, entry.start, _ORDER.index(entry.what)))


def _of_start(start: JobStart) -> Iterator[Entry]:
    number = start.number
    hosts = sorted({worker.host for worker in start.workers if worker.host})
    where = f" on {some(hosts, _NAMED)}" if hosts else ""
    began = f"start {number}: {counted(start.members, 'worker')}{where}"
    yield Entry(start_key(start), start.began, number, "start", began)
    samples = start.reference.samples
    if start.first_step is not None and samples:
        whence = f", restored from {start.restored}" if start.restored else ""
        if start.memory_age is not None:
            whence += f" (in memory, {start.memory_age:.1f} s old; no tensor was read from the directory)"
        trains = f"start {number} trains from step {start.first_step:,}{whence}"
        yield Entry(f"train-{number}", samples[0].at, number, "train", trains)
    if start.end is End.RUNNING:
        return
    for worker in start.workers:
        if worker.end in (End.FAILED, End.HUNG, End.KILLED, End.SILENT):
            why = f"{' ' if worker.end is End.KILLED else ': '}{worker.why}" if worker.why else ""
            words = f"w{worker.member} {worker.end.value}{why}"
            yield Entry(f"worker-{number}-{worker.member}", worker.ended, number, "worker", words, worker.end)
    cost = f"; steps lost: {lost(start)}" if start.lost_why else ""
    yield Entry(end_key(start), start.ended, number, "end", f"start {number} {ended(start)}{cost}", start.end)


def start_key(start: JobStart) -> str:
    return f"start-{start.number}"


def end_key(start: JobStart) -> str:
    return f"end-{start.number}"


def save_key(save: Save) -> str:
    return f"save-{save.incarnation}-{save.step}"


def notice_key(notice: ReportedNotice) -> str:
    withdrawn = "-withdrawn" if notice.withdrawn else ""
    return f"notice-{notice.incarnation}-{notice.member}-{round(1000 * notice.at)}{withdrawn}"


def loss_links(account: Account, start: JobStart) -> list[tuple[str, str]]:
    """Returns the keys and names of the entries that explain what a start has lost: its end, and what was left."""
    links = [(end_key(start), f"how start {start.number} ended")]
    kept = [save for save in account.saves if start.kept_until is not None and save.step == start.kept_until]
    if kept:
        links.append((save_key(kept[-1]), f"the checkpoint of step {kept[-1].step:,}"))
    return links


def shortened(all_entries: Sequence[Entry], needed: Collection[str]) -> list[Entry]:
    """Leaves out the oldest saves and notices, and then whatever is oldest, until `MOST` are left.

    Those whose keys are `needed`, since something refers to them, stay as long as anything else can go.
    """
    spare = [each.key for each in all_entries if each.key not in needed and each.what in ("save", "notice")]
    is_spare = set(spare)
    others = [entry.key for entry in all_entries if entry.key not in is_spare]
    without = set([*spare, *others][: max(0, len(all_entries) - MOST)])
    return [entry for entry in all_entries if entry.key not in without]


def folded(shown: Sequence[Entry], needed: Collection[str]) -> Iterator[tuple[str, list[Entry]]]:
    """Yields entries in a row that are of a kind, with what they have in common in words; `needed` ones stand alone."""
    for alike, found in itertools.groupby(shown, lambda entry: "" if entry.key in needed else entry.alike):
        row = list(found)
        if alike and len(row) >= _FOLDED:
            apart = statistics.median(after.at - before.at for before, after in itertools.pairwise(row))
            often = f", about every {length(apart)}" if apart >= 1.0 else ""
            yield f"{alike}: {len(row)} times{often}; the last one: {row[-1].words}", row
        else:
            yield from (("", [entry]) for entry in row)


def entry_line(entry: Entry, account: Account) -> str:
    return f"{clock(entry.at, account.began)} {entry.words}"
