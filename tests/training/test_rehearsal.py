"""A fit under a drill records what it does, whether it is preempted or not, and it is struck where it shall be."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.backend.tensorflow.datasets import hidden_sources
from keras_preempt.cli.drill.comparison import find_parting
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.process import environment

STEPS, EPOCHS = 6, 2


def train(directory: Path) -> None:
    """Trains with a validation after each epoch, to the end or until it is preempted."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.2)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    x = np.arange(3 * 4 * STEPS, dtype="float32").reshape(-1, 3) / 100
    callback = PreemptionCallback(directory, termination=TerminationConfig(exit_fn=lambda: None))
    data = {"x": x, "y": x[:, :1], "validation_data": (x[:8], x[:8, :1])}
    model.fit(**data, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[callback])


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trains until it is done, preempted by the drills of a list in turn; returns the record."""
    number = iter(range(100))

    def run(*drills: dict[str, object]) -> RunRecord:
        folder = tmp_path / f"run{next(number)}"
        folder.mkdir()
        monkeypatch.setenv(environment.DRILL_RECORD, str(folder))
        monkeypatch.setenv(environment.DRILL_DIRECTORY, str(folder / "places"))
        for incarnation, drill in enumerate([*drills, None]):
            monkeypatch.setenv(environment.INCARNATION, str(incarnation))
            monkeypatch.setenv(environment.DRILL, "" if drill is None else json.dumps({"member": 0, **drill}))
            if drill is None:
                train(Path("checkpoints"))
            else:
                with pytest.raises(Preempted):
                    train(Path("checkpoints"))
        return read_run_record(folder, len(drills) + 1, 1)

    return run


def test_an_exact_resume_is_equal_at_every_recorded_step(rehearse, monkeypatch):
    earlier = hidden_sources()  # What tests before this one have traced in the same process.
    undisturbed = rehearse()
    assert undisturbed.steps_run(0) == STEPS * EPOCHS
    assert undisturbed.fits(0)[0].validations == [(STEPS, 1), (2 * STEPS, 1)]
    assert undisturbed.input_doubts == []
    assert set(undisturbed.hidden_sources) <= set(earlier)
    monkeypatch.setenv(environment.SAVE_EVERY, "5")
    preempted = rehearse(
        {"step": 3},
        {"step": 5, "at": "saving"},
        {"step": STEPS, "at": "validation", "batch": 1},
        {"step": 9, "at": "leaving"},
    )
    assert [preempted.began_at(number) for number in range(2)] == [0, 3]
    assert (preempted.began_at(3), preempted.began_at(4)) == (STEPS, 9)
    assert sum(preempted.steps_run(number) or 0 for number in range(5)) == STEPS * EPOCHS
    assert find_parting(undisturbed, preempted) is None
    recorded = [line for line in preempted.incarnations[4][0] if "digests" in line]
    assert [line["step"] for line in recorded] == [9, 10, 11, 12]
    recorded[1]["digests"]["random seeds"] = "another"
    parting = find_parting(undisturbed, preempted)
    assert parting is not None
    assert (parting.step, parting.equal_until, parting.groups) == (10, 9, ("random seeds",))


def test_without_a_drill_nothing_is_recorded_and_no_boundary_is_looked_at(tmp_path, monkeypatch):
    for name in (environment.DRILL, environment.DRILL_RECORD):
        monkeypatch.delenv(name, raising=False)
    looked = []
    monkeypatch.setattr(
        "keras_preempt.training.rehearsal.Rehearsal.boundary", lambda *args: looked.append(args)
    )
    train(tmp_path / "checkpoints")
    assert looked == []


def test_a_signal_from_outside_stops_training_at_the_very_step_at_which_it_was_asked_for(rehearse, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    told = []

    def send() -> None:
        with os.fdopen(os.dup(reader)) as lines:
            for line in lines:
                told.append(json.loads(line))
                if "wanted" in told[-1]:
                    os.kill(told[-1]["pid"], signal.SIGTERM)
                elif len(told) == 4:
                    return

    sender = threading.Thread(target=send)
    sender.start()
    outside = {"tell": str(pipe), "outside": True}
    preempted = rehearse({"step": 3, **outside}, {"step": STEPS, "at": "validation", "batch": 1, **outside})
    sender.join(60)
    os.close(reader)
    assert [next(iter(each)) for each in told] == ["signal", "arrived"] * 2
    assert [preempted.began_at(number) for number in range(3)] == [0, 3, STEPS]
    assert find_parting(rehearse(), preempted) is None


@pytest.mark.parametrize("reshuffle", [True, False])
def test_a_shuffle_that_training_and_validation_share_is_recorded_if_it_matters(
    rehearse, monkeypatch, reshuffle
):
    def fit(directory: Path) -> None:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((np.ones((20, 1)), np.ones((20, 1))))
        data = data.shuffle(20, seed=1, reshuffle_each_iteration=reshuffle)
        callback = PreemptionCallback(directory)
        model.fit(
            data.skip(4).batch(4),
            validation_data=data.take(4).batch(4),
            shuffle=False,
            verbose=0,
            callbacks=[callback],
        )

    monkeypatch.setattr("tests.training.test_rehearsal.train", fit)
    found = rehearse().shared
    assert [
        line.startswith("the training and the validation data come from one shuffle") for line in found
    ] == [True] * reshuffle
