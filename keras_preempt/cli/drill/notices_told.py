"""Which notices a checkpoint was the answer to, from the events of its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.checkpoint_summary import CheckpointSummary
from keras_preempt.report import events

__all__ = ["with_notices"]

_ANSWERS = ("preempted", "deadline")
_MOST_BYTES, _MOST_FILES = 16 << 20, 500  # of events; more take longer than this is worth


def with_notices(store: Store, checkpoints: Sequence[CheckpointSummary]) -> list[CheckpointSummary]:
    """Adds to those that a notice has called for what the notice said, as far as the events tell.

    Args:
        store: The run's directory.
        checkpoints: From `checkpoints_of`.

    Raises:
        StoreUnavailable: the storage failed.
        UnsupportedFormat: the events were written in a newer format.
    """
    if not any(checkpoint.kind in _ANSWERS for checkpoint in checkpoints):
        return list(checkpoints)
    files = store.list(EVENTS)
    if len(files) > _MOST_FILES or sum(file.size for file in files) > _MOST_BYTES:
        return list(checkpoints)
    told = events.read(store, on_gap=_ignored)
    return [replace(checkpoint, notices=_answered(checkpoint, told)) for checkpoint in checkpoints]


def _ignored(gap: str) -> None:
    """What is missing of the events is for the report to tell."""


def _answered(checkpoint: CheckpointSummary, told: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    if checkpoint.kind not in _ANSWERS or checkpoint.saved_at is None:
        return ()
    standing: dict[str, None] = {}
    for event in told:
        # Other machines' clocks may be a little ahead; a notice of another start is not meant.
        if event["incarnation"] != checkpoint.incarnation or event["event"] not in ("notice", "withdrawn"):
            continue
        if event["time"] > checkpoint.saved_at:
            continue
        notice = f"{event.get('reason')} on worker {event.get('member')}"
        if event["event"] == "notice":
            standing[notice] = None
        else:
            standing.pop(notice, None)
    return tuple(standing)
