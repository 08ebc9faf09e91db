"""The words of a report: times, lengths, steps, how a run and its starts ended."""

from __future__ import annotations

import datetime

from keras_preempt.process.words import counted
from keras_preempt.report.account import Account
from keras_preempt.report.job_start import JobStart
from keras_preempt.report.worker_run import End


def moment(at: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time in UTC, such as "2026-11-21 15:43:34"."""
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime(form)


def clock(at: float, since: float) -> str:
    """A time in UTC; only the time of the day if it is on the day of `since`."""
    same_day = moment(at, "%Y-%m-%d") == moment(since, "%Y-%m-%d")
    return moment(at, "%H:%M:%S" if same_day else "%m-%d %H:%M:%S")


def length(seconds: float) -> str:
    """A length of time, such as "5.36 s", "12 min 05 s" or "3 h 07 min"."""
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def speed(value: float) -> str:
    """Steps a second, such as "12.3" or "1,234"."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def lost(of: JobStart | Account) -> str:
    """A number of lost steps, such as "8", "at most 20", "8 to 20", "at least 8" or "unknown"."""
    if of.lost_exactly:
        return f"{of.lost:,}"
    if of.lost_at_most is None:
        return f"at least {of.lost:,}" if of.lost else "unknown"
    return f"{of.lost:,} to {of.lost_at_most:,}" if of.lost else f"at most {of.lost_at_most:,}"


def step_range(start: JobStart) -> str:
    if start.first_step is None or start.last_step is None:
        return "-"
    exact = start.end is End.FINISHED or any(worker.exact for worker in start.workers)
    return f"{start.first_step}-{start.last_step}{'' if exact else '+'}"


def ended(start: JobStart) -> str:
    return f"{start.end.value}: {start.why}" if start.why else start.end.value


def headline(account: Account) -> str:
    end = account.starts[-1].end
    state = {
        End.PREEMPTED: "preempted, not started again",
        End.INTERRUPTED: "interrupted by Ctrl-C",
        End.HUNG: "hung, not started again",
        End.KILLED: "killed, not started again",
    }.get(end, end.value)
    starts, workers = counted(len(account.starts), "start"), counted(len(account.workers), "worker")
    return f"{state} at step {account.step:,} after {starts} of {workers}"


def summary(account: Account) -> list[str]:
    wall = length(account.ended - account.began)
    kept = account.steps_run - account.lost
    sure = "" if account.lost_exactly else "at least "
    lines = [
        f"{moment(account.began)} to {clock(account.ended, account.began)} UTC, {wall}",
        f"steps: {sure}{account.steps_run:,} run, {kept:,} kept, {lost(account)} lost",
        f"goodput: {percent(account.goodput)} of the wall time was productive",
    ]
    lost_to = [f"{cause} {percent(spent / account.wall)}" for cause, spent in account.badput.items() if spent]
    if lost_to:
        lines.append(f"badput: {', '.join(lost_to)}")
    if account.speed is not None:
        lines.append(f"speed: {speed(account.speed)} steps a second while it trained")
    return lines


def losses(account: Account) -> list[str]:
    return [lost_steps(start) for start in account.starts if start.lost_why]


def lost_steps(start: JobStart) -> str:
    count = lost(start)
    what = "may have lost steps" if count == "unknown" else f"lost {count} step{'' if count == '1' else 's'}"
    return f"start {start.number} {what}: {start.lost_why}"
