"""A fit under a drill records what it does, whether it is preempted or not, and it is struck where it shall be."""

from __future__ import annotations

import functools
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
from keras_preempt.agreement.alignment import Position
from keras_preempt.backend.tensorflow.datasets import hidden_sources
from keras_preempt.cli.drill.comparison import find_parting
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.process import environment
from keras_preempt.training import step_record
from keras_preempt.training.step_record import StepRecord, digests, record_name
from tests import fits
from tests.cluster.noticed_fit import Model


def test_each_boundary_is_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DRILL_RECORD, str(tmp_path))
    monkeypatch.setenv(environment.INCARNATION, "2")
    weights = np.zeros(3, np.float32)
    record = StepRecord.from_environment(1, lambda: {"model/kernel": weights}, weights.nbytes)
    assert record is not None
    record.begin(4, "step-00000004/a", False, "why", ["Warm"])
    record.boundary(Position(0, "epoch", 0, 4), None)
    record.boundary(Position(0, "train", 0, 4), {"loss": np.float32(0.5), "vector": np.zeros(2)})
    weights[1] = 1.0
    record.boundary(Position(0, "train", 1, 5), {})
    record.sources(["a"])
    found = [json.loads(line) for line in (tmp_path / record_name(2, 1)).read_text().splitlines()]
    record.close()
    begin = {"what": "begin", "step": 4, "restored": "step-00000004/a", "exact": False, "why": "why"}
    assert found[0] == {**begin, "unsaved": ["Warm"], "fit": "", "directory": "", "files": {}, "shared": []}
    assert "digests" not in found[1]
    assert found[2]["logs"] == {"loss": 0.5}
    assert found[2]["digests"].keys() == {"weights"}
    assert found[2]["digests"] != found[3]["digests"]
    assert found[4] == {"what": "sources", "found": ["a"]}


def test_a_large_state_is_summed_up_at_some_executions_only(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "r", dict, 2 * step_record.SUMMED_AT_ONCE, steps_per_execution=2)
    for step in range(0, 24, 2):
        record.boundary(Position(0, "train", step, step), {})
    record.boundary(Position(1, "end", 0, 26), {})
    record.close()
    found = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    assert [line["step"] for line in found if "digests" in line] == [0, 6, 12, 18, 26]


GROUPS = {
    "model/dense/kernel": "weights",
    "optimizer/adam/velocity": "optimizer",
    "metrics/loss/total@1": "metrics",
    "model/dropout/seed_generator/seed_generator_state@0": "random seeds",
    "keras/global_seed@0": "random seeds",
    "else": "other state",
}


def test_a_change_of_any_tensor_changes_the_sum_of_its_group_whatever_it_holds() -> None:
    for name, group in GROUPS.items():
        before, after = digests({name: np.array([1.0, 2.0])}), digests({name: np.array([1.0, 2.5])})
        assert before.keys() == after.keys() == {group}
        assert before != after

    # So do strings, scalars and empty tensors.
    words = digests({"a": np.array([b"x", b"y"], object)})
    assert words != digests({"a": np.array([b"x", b"z"], object)})
    assert digests({"a": np.float32(1).reshape(()), "b": np.zeros((0, 2))})


STEPS, EPOCHS = 6, 2

compiled = functools.cache(Model)


def train(directory: Path) -> None:
    """Trains with a validation after each epoch, to the end or until it is preempted."""
    compiled().begin_anew()
    fits.forget()
    keras.utils.set_random_seed(1)
    x = np.arange(4 * 4 * STEPS, dtype="float32").reshape(-1, 4) / 100
    callback = PreemptionCallback(directory, termination=TerminationConfig(exit_fn=lambda: None))
    data = {"x": x, "y": x[:, :1], "validation_data": (x[:8], x[:8, :1])}
    compiled().keras.fit(**data, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[callback])


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
    assert StepRecord.from_environment(0, dict, 0) is None
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
        model.compile("sgd", "mse", jit_compile=False)
        data = tf.data.Dataset.from_tensor_slices((np.ones((20, 1)), np.ones((20, 1))))
        data = data.shuffle(20, seed=1, reshuffle_each_iteration=reshuffle)
        split = {"x": data.skip(4).batch(4), "validation_data": data.take(4).batch(4)}
        model.fit(**split, shuffle=False, verbose=0, callbacks=[PreemptionCallback(directory)])

    monkeypatch.setattr("tests.training.test_rehearsal.train", fit)
    said = "the training and the validation data come from one shuffle"
    assert [line.startswith(said) for line in rehearse().shared] == [True] * reshuffle
