"""Saves the position of an input, and has another feed continue from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keras_preempt.agreement.messages import Position
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.component import RestoreMoment, StoredState
from keras_preempt.state.inputs import Input
from keras_preempt.state.shuffles import Shuffles


def captured_input(feed: InputFeed, arrays: dict[str, Any], *, inside: bool = True) -> dict[str, Any]:
    """Inside of an epoch before an execution, or before an epoch."""
    phase, component = "train" if inside else "epoch", Input(feed)
    component.locate(phase)
    return dict(component.capture(phase, WorkerValues(local=arrays))["input"])


def continued_input(
    feed: InputFeed,
    state: Mapping[str, Any],
    arrays: Mapping[str, Any],
    *,
    batch: int | None,
    shuffles: Shuffles | None = None,
    all_go: Callable[[str], bool] = lambda way: True,
) -> str:
    """Continues with a step of an epoch, or before one; returns how, in words."""
    component = Input(feed, shuffles)
    position = Position(0, "epoch" if batch is None else "train", batch or 0, 0)
    saved = StoredState(position, {"input": state}, WorkerValues(local=dict(arrays)), all_go)
    component.restore(saved, RestoreMoment.BEGIN)
    return component.how
