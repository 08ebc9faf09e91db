"""Machines' clocks differ: puts the starts of a run in the order of their numbers. Pure.

A start is claimed after the one before it, and a checkpoint is restored after it was committed. Where the times of a
worker say otherwise, the clock of its machine is behind those of the start before, and all its times there are moved:
it then begins when the start before it ends, which is the least that it can be behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from keras_preempt.process.json_fields import number
from keras_preempt.report.event import LATEST, process_began, seconds, whole, words

_MOMENTS = ("time", "started_at", "began_at", "read_at", "ready_at", "received_at", "deadline")
"""Fields in seconds since 1970, beside those of "passed"."""


def in_order(records: Sequence[dict[str, Any]], on_gap: Callable[[str], None]) -> list[dict[str, Any]]:
    """Returns the events of a run with the times of clocks that are behind moved, in the order of their times.

    Args:
        records: In the order of their times; each with "incarnation", the number of its start.
        on_gap: Called with one sentence for each worker whose times were moved.
    """
    logs: defaultdict[int, defaultdict[int | None, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        logs[record["incarnation"]][whole(record, "member")].append(record)
    found: list[dict[str, Any]] = []
    claimed = ended = 0.0
    committed: dict[str, float] = {}
    for start, members in sorted(logs.items()):
        own: list[dict[str, Any]] = []
        for member, log in members.items():
            restored = next((words(each, "checkpoint") for each in log if each["event"] == "restore"), None)
            saved = committed.get((restored or "").rpartition("/")[2], 0.0)
            earliest = {"start": claimed, "restore": saved}
            if any(record["time"] < earliest.get(record["event"], 0.0) for record in log):
                behind = ended - process_began(log)
                on_gap(
                    f"start {start}, w{member}: the clock of its machine was {behind:.0f} s or more behind; its times "
                    "are moved by that"
                )
                log = [_moved(record, behind) for record in log]
            own += log
        claimed = max([claimed, *(record["time"] for record in own if record["event"] == "start")])
        ended = max(record["time"] for record in own)
        for record in own:
            if record["event"] == "commit" and (attempt := words(record, "attempt")) is not None:
                committed.setdefault(attempt, record["time"])
        found += own
    return sorted(found, key=lambda record: record["time"])


def _moved(record: dict[str, Any], by: float) -> dict[str, Any]:
    moved = {**record}
    moved |= {name: moment + by for name in _MOMENTS if (moment := seconds(record, name)) is not None}
    if isinstance(passed := record.get("passed"), list):
        moved["passed"] = [
            [mark[0] + by, *mark[1:]]
            if isinstance(mark, list) and mark and number(mark[0], 0.0, LATEST) is not None
            else mark
            for mark in passed
        ]
    return moved
