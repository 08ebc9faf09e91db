"""What a user has said of the input's state is what a checkpoint holds, what the log says, and what a restart does."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import keras
import pytest

from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.storage.opening import open_store
from tests.cluster.small_fit import fit, make_model

STATE = "from the saved state of its iterator, or by replay"


def saved_input(directory: Path) -> str:
    """The way in which the newest checkpoint continues the input."""
    with contextlib.closing(open_store(str(directory))) as store:
        loaded = load(store, committed(store)[0], 0, 1)
    way = str(loaded.state["input"]["way"])
    assert ("input/state" in loaded.values.local) == (way == "state")
    return way


@pytest.mark.parametrize(
    ("input_state", "way", "promised", "done"),
    [
        ("auto", "state", STATE, "from the iterator's saved state"),
        pytest.param(10**9, "state", STATE, "from the iterator's saved state", marks=pytest.mark.chaos),
        ("replay", "replay", 'by replay, since input_state is "replay": the batches', "by replay of"),
    ],
)
def test_a_fit_keeps_of_its_input_what_the_user_has_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    input_state: int | str,
    way: str,
    promised: str,
    done: str,
) -> None:
    caplog.set_level(logging.INFO, "keras_preempt")
    ends = []
    for directory, strike in (("undisturbed", None), ("preempted", (1, 1))):
        keras.utils.set_random_seed(3)
        model = make_model()
        steps = fit(tmp_path / directory, model=model, strike=strike, input_state=input_state)
        if strike is not None:
            assert saved_input(tmp_path / directory) == way
            steps += fit(tmp_path / directory, model=model, input_state=input_state)
        ends.append((steps, [value.numpy().tobytes() for value in model.weights]))
    assert ends[0] == ends[1]
    assert f"bit-identical; the input continues {promised}" in caplog.text
    assert f"Input: {done}" in caplog.text
