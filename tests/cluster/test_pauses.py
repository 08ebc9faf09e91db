"""What is no step but lies between two boundaries is known to the countdown when a notice comes.

Each place takes long once. The time that is left then, some seconds, would do for the steps, and not for that
place: so the one save is made at once. Without the pause there is time to train on.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import keras
import pytest

from keras_preempt import TerminationConfig
from tests.cluster.small_fit import STEPS, fit, make_data, make_model
from tests.fits import Doing

# Seconds. On a busy machine, any step may take some of them.
PAUSE, GRACE = 4.0, 26.0


def slow(place: str) -> Doing:
    """Takes its time at one place of the first epoch."""
    times = iter([PAUSE])
    return Doing(**{place: lambda *_, **__: time.sleep(next(times, 0.0))})


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Compiled already: no step takes as long as a pause."""
    model = make_model()
    model.fit(make_data(), validation_data=make_data(), shuffle=False, verbose=0)
    return model


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("on_epoch_begin", marks=pytest.mark.chaos),
        pytest.param("on_test_begin", marks=pytest.mark.chaos),
        "on_epoch_end",
        "nowhere",
    ],
)
def test_a_long_pause_between_steps_counts_for_the_countdown(
    place: str, model: keras.Model, tmp_path: Path
) -> None:
    config = TerminationConfig(exit_fn=lambda: None, grace_period=GRACE)
    ran = fit(
        tmp_path / "run",
        model=model,
        validation=make_data(),
        strike=(1, 2),
        more=[slow(place)],
        termination=config,
    )
    (log,) = (tmp_path / "run").glob("events/*.jsonl")
    plan = next(event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "plan")
    finished = len(ran) == 2 * STEPS
    assert (finished, plan["goes_on"]) == ((True, True) if place == "nowhere" else (False, False))
