"""What is no step but lies between two boundaries is known to the countdown when a notice comes.

Each place takes long once. The time that is left then, some seconds, would do for the steps, and not for that
place: so the one save is made at once. Without the pause there is time to train on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests.cluster.small_fit import make_data, make_model

# Seconds. On a busy machine, any step may take some of them.
PAUSE, GRACE = 4.0, 26.0


class Slow(keras.callbacks.Callback):
    """Takes its time at one place of the first epoch; the signal comes in the second."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._epoch = 0

    def _pass(self, place: str) -> None:
        if place == self._place and self._epoch == 0:
            time.sleep(PAUSE)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._pass("epoch begin")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_test_begin(self, logs: Any = None) -> None:
        self._pass("validation begin")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._pass("epoch end")

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Compiled already: no step takes as long as a pause."""
    model = make_model()
    model.fit(make_data(), validation_data=make_data(), shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("place", ["epoch begin", "validation begin", "epoch end", "nowhere"])
def test_a_long_pause_between_steps_counts_for_the_countdown(
    place: str, model: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")
    config = TerminationConfig(exit_fn=lambda: None, grace_period=GRACE)
    callbacks = [PreemptionCallback(tmp_path / "run", termination=config), Slow(place)]
    ended = "finished"
    try:
        model.fit(
            make_data(), validation_data=make_data(), epochs=2, shuffle=False, verbose=0, callbacks=callbacks
        )
    except Preempted:
        ended = "preempted"
    (log,) = (tmp_path / "run").glob("events/*.jsonl")
    plan = next(event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "plan")
    assert (ended, plan["goes_on"]) == (("finished", True) if place == "nowhere" else ("preempted", False))
