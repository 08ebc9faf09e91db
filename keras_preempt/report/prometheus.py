"""The figures of a report as Prometheus text, the exposition format 0.0.4. Pure.

A counter only rises, whatever becomes known later: a restart may turn productive time into recomputed steps, so those
are gauges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keras_preempt.report.account import Account
from keras_preempt.report.goodput import MEANINGS, PRODUCTIVE
from keras_preempt.report.worker_run import End

_COUNTER, _GAUGE = "counter", "gauge"


class _Metric(NamedTuple):
    name: str  # without the prefix
    type: str
    help: str
    values: Mapping[str, float]  # by the value of `label`, "" if there is no such label
    label: str = ""


def prometheus_text(account: Account, run: str) -> str:
    """Returns all figures; `run` is the value of their label of that name.

    Texts of help do not depend on the run: node_exporter objects to two of one metric.
    """
    lines = []
    for metric in _metrics(account):
        name = f"keras_preempt_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.type}"]
        for value, number in metric.values.items():
            more = f',{metric.label}="{_escaped(value)}"' if metric.label else ""
            lines.append(f'{name}{{run="{_escaped(run)}"{more}}} {number!r}')
    return "\n".join(lines) + "\n"


def _metrics(account: Account) -> Iterator[_Metric]:
    last, ended = account.starts[-1], Counter(start.end for start in account.starts)
    together = "of all workers together"
    yield _Metric("wall_seconds_total", _COUNTER, f"Wall time {together}.", _one(account.wall))
    productive = f"Productive time {together}: {MEANINGS[PRODUCTIVE]}."
    yield _Metric("productive_seconds", _GAUGE, productive, _one(account.productive))
    rest = f"The rest of the wall time {together}, by cause."
    yield _Metric("badput_seconds", _GAUGE, rest, account.badput, "cause")
    yield _Metric("goodput_ratio", _GAUGE, "Productive time as a part of wall time.", _one(account.goodput))
    yield _Metric("starts_total", _COUNTER, "Starts of the job.", _one(len(account.starts)))
    ends = {end.value: ended[end] for end in End if end not in (End.FINISHED, End.RUNNING)}
    yield _Metric("interruptions_total", _COUNTER, "Starts that ended early, by how.", ends, "end")
    restored = [start.memory_age is not None for start in account.starts if start.restored is not None]
    sources = {"memory": restored.count(True), "directory": restored.count(False)}
    yield _Metric(
        "restores_total", _COUNTER, "Starts that continued from a checkpoint, by where.", sources, "source"
    )
    yield _Metric(
        "interruptions_lost_seconds",
        _GAUGE,
        "What all interruptions have cost a worker in the mean, each from its last step to its next one, with the "
        "steps that had to be run again.",
        _one(sum(start.lost_seconds for start in account.starts)),
    )
    yield _Metric("steps", _GAUGE, "Training steps done and kept.", _one(account.step))
    yield _Metric("steps_run_total", _COUNTER, "Training steps done.", _one(account.steps_run))
    lost = "Training steps that had to be run again, or will have to; the least number known."
    yield _Metric("steps_lost", _GAUGE, lost, _one(account.lost))
    if account.speed is not None:
        yield _Metric("steps_per_second", _GAUGE, "Speed of training while it trained.", _one(account.speed))
    yield _Metric("saves_total", _COUNTER, "Committed checkpoints.", _one(len(account.saves)))
    if account.saves:
        save = max(account.saves, key=lambda each: each.at)
        yield _Metric(
            "last_save_timestamp_seconds", _GAUGE, "When the newest checkpoint was committed.", _one(save.at)
        )
        yield _Metric("last_save_duration_seconds", _GAUGE, "How long it took to save.", _one(save.seconds))
    yield _Metric("workers", _GAUGE, "Workers of the newest start.", _one(last.members))
    yield _Metric(
        "running", _GAUGE, "1 while the newest start is running.", _one(int(last.end is End.RUNNING))
    )


def _one(value: float) -> dict[str, float]:
    return {"": value}


def _escaped(value: str) -> str:
    """A value of a label; what is not Unicode in a file name is replaced."""
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
