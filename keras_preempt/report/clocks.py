"""Machines' clocks differ: puts the starts of a run in the order of their numbers. Pure.

A start is claimed after the one before it, and a checkpoint is restored after it was committed. Where the times of a
worker say otherwise, the clock of its machine is behind those of the start before, and all its times there are moved:
it then begins when the start before it ends, which is the least that it can be behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_preempt.checkpoint.fields import number
from keras_preempt.report.fields import LATEST, seconds, whole, words

_MOMENTS = ("time", "started_at", "began_at", "read_at", "ready_at", "received_at", "deadline")
"""Fields in seconds since 1970, beside those of "passed"."""

_Told = dict[str, Any]


def in_order(events: Sequence[_Told], on_gap: Callable[[str], None]) -> list[_Told]:
    """Returns the events of a run with the times of clocks that are behind moved, in the order of their times.

    Args:
        events: In the order of their times; each with "incarnation", the number of its start.
        on_gap: Called with one sentence for each worker whose times were moved.
    """
    logs: defaultdict[int, defaultdict[int | None, list[_Told]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        logs[event["incarnation"]][whole(event, "member")].append(event)
    found: list[_Told] = []
    claimed = ended = 0.0
    committed: dict[str, float] = {}
    for start, members in sorted(logs.items()):
        own: list[_Told] = []
        for member, log in members.items():
            earliest = {"start": claimed, "restore": _of_restored(log, committed)}
            if any(event["time"] < earliest.get(event["event"], 0.0) for event in log):
                behind = ended - _began(log)
                on_gap(
                    f"start {start}, w{member}: the clock of its machine was {behind:.0f} s or more behind; its times "
                    "are moved by that"
                )
                log = [_moved(event, behind) for event in log]
            own += log
        claimed = max([claimed, *(event["time"] for event in own if event["event"] == "start")])
        ended = max(event["time"] for event in own)
        for event in own:
            if event["event"] == "commit" and (attempt := words(event, "attempt")) is not None:
                committed.setdefault(attempt, event["time"])
        found += own
    return sorted(found, key=lambda event: event["time"])


def _of_restored(log: Sequence[_Told], committed: Mapping[str, float]) -> float:
    restored = next((words(event, "checkpoint") for event in log if event["event"] == "restore"), None)
    return committed.get((restored or "").rpartition("/")[2], 0.0)


def _began(log: Sequence[_Told]) -> float:
    times: list[float] = [event["time"] for event in log]
    told = [seconds(event, "started_at") for event in log if event["event"] == "start"]
    return min([*times, *(moment for moment in told if moment is not None)])


def _moved(event: _Told, by: float) -> _Told:
    moments = {name: moment + by for name in _MOMENTS if (moment := seconds(event, name)) is not None}
    moved = {**event, **moments}
    if isinstance(passed := event.get("passed"), list):
        moved["passed"] = [_mark_moved(mark, by) for mark in passed]
    return moved


def _mark_moved(mark: object, by: float) -> object:
    if not isinstance(mark, list) or not mark or (at := number(mark[0], 0.0, LATEST)) is None:
        return mark
    return [at + by, *mark[1:]]
