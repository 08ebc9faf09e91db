"""A report for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.tables import shares

FORMAT = 1
"""Raised when a field changes its meaning or goes; new fields may come at any time."""


def as_json(account: Account, directory: str) -> dict[str, Any]:
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
        "goodput": account.goodput,
        "starts": [_start(start) for start in account.incarnations],
        "workers": [_worker(worker) for worker in account.workers],
        "notices": [asdict(notice) for notice in account.notices],
        "saves": [asdict(save) for save in account.saves],
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
        "steps_lost_why": start.lost_why,
        "restored": start.restored,
        "skipped": list(start.skipped),
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "worker": worker.member,
        "wall": worker.wall,
        "useful": worker.useful,
        "goodput": worker.goodput,
        "seconds": shares(worker),
        "spans": [asdict(span) for span in worker.spans],
    }
