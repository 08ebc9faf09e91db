"""How a report says times, lengths of time and counts."""

from __future__ import annotations

import datetime

from keras_preempt.report.account import Account, Incarnation
from keras_preempt.report.life import End
from keras_preempt.report.spans import MEANINGS


def moment(at: float) -> str:
    """A time in UTC, such as "2026-11-21 15:43:34"."""
    return _utc(at).strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float, since: float) -> str:
    """A time in UTC; only the time of the day if it is on the day of `since`."""
    same_day = _utc(at).date() == _utc(since).date()
    return _utc(at).strftime("%H:%M:%S" if same_day else "%m-%d %H:%M:%S")


def length(seconds: float) -> str:
    """A length of time, such as "5.36 s", "12:05" (minutes) or "3:07:12" (hours)."""
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
    """A part of one in percent, with one digit after the point."""
    return f"{100 * part:.1f} %"


def counted(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def lost(count: int, exactly: bool) -> str:
    """A number of lost steps, such as "8", "at least 8" or "unknown"."""
    if exactly:
        return f"{count:,}"
    return f"at least {count:,}" if count else "unknown"


def steps(start: Incarnation) -> str:
    """From which step to which one a start has come."""
    if start.first_step is None or start.last_step is None:
        return "-"
    open_end = "+" if start.end is not End.FINISHED and not any(life.exact for life in start.lives) else ""
    return f"{start.first_step}-{start.last_step}{open_end}"


def headline(account: Account) -> str:
    """What has become of the run, in one line."""
    last = account.incarnations[-1]
    state = {
        End.FINISHED: "finished",
        End.RUNNING: "running",
        End.PREEMPTED: "preempted, not started again",
        End.FAILED: "failed",
        End.KILLED: "killed, not started again",
        End.SILENT: "ended without a word",
    }[last.end]
    starts = counted(len(account.incarnations), "start")
    workers = counted(len(account.workers), "worker")
    return f"{state} at step {account.step:,} after {starts} of {workers}"


def losses(account: Account) -> list[str]:
    """Which steps were lost and why, one line for each start that lost some."""
    lines = []
    for start in account.incarnations:
        if start.lost_why:
            count = f"{'' if start.lost_exactly else 'at least '}{counted(start.lost, 'step')}"
            what = f"lost {count}" if start.lost else "may have lost steps"
            lines.append(f"start {start.number} {what}: {start.lost_why}")
    return lines


def used(account: Account) -> list[str]:
    """Everything that some worker's time has gone into, in the order of display."""
    there = {span.what for worker in account.workers for span in worker.spans}
    return [what for what in MEANINGS if what in there]


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
