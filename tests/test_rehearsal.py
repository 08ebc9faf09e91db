"""A fit under a drill records what it does, whether it is preempted or not, and it is struck where it shall be."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig, environment
from keras_preempt.cli.parting import find_parting
from keras_preempt.cli.step_records import RunRecord, read_run_record
from keras_preempt.tensorflow_internals import hidden_sources

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
        for incarnation, drill in enumerate([*drills, None]):
            monkeypatch.setenv(environment.INCARNATION, str(incarnation))
            monkeypatch.setenv(environment.DRILL, "" if drill is None else json.dumps({"member": 0, **drill}))
            if drill is None:
                train(folder / "checkpoints")
            else:
                with pytest.raises(Preempted):
                    train(folder / "checkpoints")
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
    monkeypatch.setattr("keras_preempt.rehearsal.Rehearsal.boundary", lambda *args: looked.append(args))
    train(tmp_path / "checkpoints")
    assert looked == []
