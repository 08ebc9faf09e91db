"""Which steps had to be run again, or will have to: counted from where each start began and how far it came. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_preempt.report.account import Incarnation, Save
from keras_preempt.report.life import End


def with_losses(starts: Sequence[Incarnation], saves: Sequence[Save]) -> list[Incarnation]:
    """Returns the starts with what each has lost.

    A start keeps the steps that no later one runs again: those before the step at which a later one began. The last
    start, if it has ended before its time, keeps what is committed.

    Args:
        starts: In order.
        saves: Those that were committed.
    """
    found: list[Incarnation] = []
    limit: int | None = None
    pending = True  # No later start has come so far as to train.
    for start in reversed(starts):
        if start.first_step is None or start.last_step is None:
            found.append(start)
            continue
        if pending and start.end not in (End.FINISHED, End.RUNNING):
            committed = [save.step for save in saves if save.incarnation <= start.number]
            limit = max([start.first_step, *(step for step in committed if step <= start.last_step)])
        found.append(_with_loss(start, limit, pending))
        limit = start.first_step if limit is None else min(limit, start.first_step)
        pending = False
    return found[::-1]


def _with_loss(start: Incarnation, limit: int | None, pending: bool) -> Incarnation:
    assert start.first_step is not None
    assert start.last_step is not None
    if limit is None:
        return start
    exact = any(life.exact for life in start.lives)
    kept = max(0, min(limit, start.last_step) - start.first_step)
    lost = max(0, start.last_step - start.first_step - kept)
    if exact and not lost:
        return start
    will = "a start now would go on" if pending else "the next one went on"
    if exact:
        why = f"{will} from step {limit}, and this one had done {start.last_step}"
    else:
        why = f"{will} from step {limit}; how far this one had come after step {start.last_step}, it could not tell"
    return replace(start, lost=lost, lost_exactly=exact, lost_why=why, kept_until=limit)
