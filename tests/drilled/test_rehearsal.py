"""A drill strikes the chosen worker at the chosen moment, and has places and records of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.agreement.messages import Position
from keras_preempt.backend.tensorflow.datasets import hidden_sources
from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.drill.comparison import find_parting
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.drilled import hooks, places
from keras_preempt.drilled.rehearsal import HALF_WRITTEN, Drill
from keras_preempt.drilled.step_record import StepRecord
from keras_preempt.process import environment
from tests import fits
from tests.cluster.noticed_fit import Model

ME = os.getpid()
Sent = list[tuple[int, int]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """Signals that would have been sent: (process, signal)."""
    found: Sent = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append((process, number)))
    yield found
    failpoints.clear_hook(HALF_WRITTEN)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """One to tell the drill of, and where it is read."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    yield str(tmp_path / "pipe"), reader
    os.close(reader)


def drill(monkeypatch: pytest.MonkeyPatch, value: Any, member: int = 0) -> Drill | None:
    monkeypatch.setenv(environment.DRILL, value if isinstance(value, str) else json.dumps(value))
    return Drill.from_environment(member)


def test_only_the_worker_and_the_fit_that_are_meant_are_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL, raising=False)
    assert Drill.from_environment(0) is None
    assert drill(monkeypatch, "") is None
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=0) is None
    assert drill(monkeypatch, {"member": 1, "step": 10}, member=1) == Drill(10)
    assert drill(monkeypatch, {"member": 0, "step": 10, "fit": "a-1/fit-00002"}) is None
    assert Drill.from_environment(0, "a-1") is None
    assert Drill.from_environment(0, "a-1/fit-00002") is not None


@pytest.mark.parametrize(
    "value",
    [
        *("ten", "10", "[]", {"member": 0}, {"step": 1}, {"member": 0, "step": None}),
        *({"member": 0, "step": 1, "at": "lunch"}, {"member": 0, "step": 1, "signal": "SIGNAL"}),
    ],
)
def test_anything_but_a_drill_is_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    with pytest.raises(ValueError, match=environment.DRILL):
        drill(monkeypatch, value)


BEFORE_A_STEP, IN_A_VALIDATION = Drill(10), Drill(5, at="validation", batch=2)


@pytest.mark.parametrize(
    ("drill", "position", "strikes"),
    [
        (BEFORE_A_STEP, Position(0, "train", 9, 9), False),
        (BEFORE_A_STEP, Position(0, "train", 10, 10), True),
        (BEFORE_A_STEP, Position(1, "train", 0, 12), True),  # several steps an execution pass over it
        (BEFORE_A_STEP, Position(0, "validation", 3, 10), False),
        (BEFORE_A_STEP, Position(1, "epoch", 0, 10), False),
        (BEFORE_A_STEP, Position(2, "end", 0, 10), False),
        (IN_A_VALIDATION, Position(0, "train", 5, 5), False),
        (IN_A_VALIDATION, Position(0, "validation", 1, 5), False),
        (IN_A_VALIDATION, Position(0, "validation", 2, 5), True),
        (IN_A_VALIDATION, Position(1, "validation", 0, 10), True),  # a restart passed over that validation
    ],
)
def test_the_signal_is_real_and_comes_right_before_the_step_or_in_the_middle_of_a_validation(
    sent: Sent, drill: Drill, position: Position, strikes: bool
) -> None:
    assert drill.strike(position) is strikes
    assert sent == ([(ME, signal.SIGTERM)] if strikes else [])


def test_a_kill_comes_without_a_notice_and_another_signal_instead_of_the_usual_one(sent: Sent) -> None:
    assert Drill(1, kill=True).strike(Position(0, "train", 1, 1))
    assert Drill(1, signal=signal.SIGUSR1).strike(Position(0, "train", 1, 1))
    assert sent == [(ME, signal.SIGKILL), (ME, signal.SIGUSR1)]


def test_a_save_is_struck_when_it_is_half_written_and_holds_the_step_or_a_later_one(sent: Sent) -> None:
    steps = iter([None, 4, 10, 12])
    drill = Drill(8, at="saving")
    drill.begin(lambda: next(steps))
    assert drill.strike(Position(0, "train", 10, 10))  # Needs no boundary.
    for expected in (0, 0, 1, 1):
        failpoints.point("save.before-parts")
        failpoints.point(HALF_WRITTEN)
        assert len(sent) == expected
    ended = Drill(0, at="saving")
    ended.begin(lambda: 5)
    ended.end()
    failpoints.point(HALF_WRITTEN)
    assert len(sent) == 1, "a fit that ends leaves no trap behind"


@pytest.mark.parametrize("kill", [False, True])
def test_the_answer_to_the_notice_is_struck_as_well(sent: Sent, kill: bool) -> None:
    drill = Drill(3, at="leaving", kill=kill)
    failpoints.point(HALF_WRITTEN)
    assert not drill.strike(Position(0, "train", 2, 2))
    assert drill.strike(Position(0, "train", 3, 3))
    assert sent == [(ME, signal.SIGTERM)]
    for _ in range(2):
        failpoints.point(HALF_WRITTEN)
        assert sent == [(ME, signal.SIGTERM), (ME, signal.SIGKILL if kill else signal.SIGTERM)]


def test_the_moment_is_told_to_whoever_listens_and_comes_also_if_nobody_does(
    sent: Sent, pipe: tuple[str, int], tmp_path: Path
) -> None:
    path, reader = pipe
    assert Drill(1, tell=path).strike(Position(0, "train", 1, 1))
    told = json.loads(os.read(reader, 4096))
    assert (told["signal"], told["pid"]) == ("SIGTERM", ME)
    assert Drill(1, tell=str(tmp_path / "none")).strike(Position(0, "train", 1, 1))
    assert len(sent) == 2


class Arriving:
    """Notices, of which one arrives where the signal is waited for, or none."""

    def __init__(self, arrives: bool) -> None:
        self.asked: list[Position | None] = []
        self._arrives = arrives

    def __call__(self, ask: Callable[[], object], timeout: float, at: Position | None) -> bool:
        ask()
        self.asked.append(at)
        return self._arrives


@pytest.mark.parametrize(("arrives", "outcome"), [(True, "arrived"), (False, "lost")])
def test_a_signal_from_outside_is_asked_for_and_waited_for_and_none_is_sent_by_this_process(
    sent: Sent, pipe: tuple[str, int], arrives: bool, outcome: str
) -> None:
    here, heard = Position(0, "train", 1, 1), Arriving(arrives)
    assert Drill(1, tell=pipe[0], outside=True).strike(here, heard)
    asked, told = (json.loads(line) for line in os.read(pipe[1], 4096).splitlines())
    assert (asked["signal"], asked["wanted"]) == ("SIGTERM", True)
    assert told == {outcome: "SIGTERM", "pid": ME}
    assert heard.asked == [here]
    assert sent == []


def test_a_script_without_tensorflow_can_be_drilled() -> None:
    code = "import sys, keras_preempt.drilled.rehearsal; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, str(tmp_path))
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    return str(tmp_path)


def test_outside_a_drill_a_directory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL_DIRECTORY, raising=False)
    monkeypatch.delenv(environment.DIRECTORY, raising=False)
    assert hooks.directory_for("runs/1") == "runs/1"
    monkeypatch.setenv(environment.DIRECTORY, "elsewhere")
    assert hooks.directory_for("runs/1") == "elsewhere"


@pytest.mark.parametrize(
    "spelling",
    ["runs/1/", "./runs/1", "runs/../runs/1", Path("runs/1"), os.path.join(os.getcwd(), "runs", "1")],
)
def test_one_directory_has_one_place_however_it_is_spelt(root: str, spelling: str | Path) -> None:
    assert hooks.directory_for(spelling) == hooks.directory_for("runs/1")


def test_different_directories_have_different_places_also_after_a_change_of_folder(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = ["runs/1", "runs/2", "other/1", str(tmp_path / "runs/1"), "a b"]
    found = [str(hooks.directory_for(each)) for each in [*local, "gs://bucket/runs/1", "gs://b/runs/1"]]
    monkeypatch.chdir(tmp_path)
    found.append(str(hooks.directory_for("other/1")))
    assert len(set(found)) == len(found)
    assert all(place.startswith(f"{root}/") for place in found)


def test_a_fit_is_named_by_its_place_and_known_by_the_words_of_the_script(root: str) -> None:
    place = str(hooks.directory_for("runs/first one"))
    name = places.fit_name(open_store(f"{place}/fit-00002").key)
    assert name == f"{os.path.basename(place)}/fit-00002"
    assert places.given(name) == "runs/first one"


@pytest.mark.parametrize("directory", ["", "  ", "a\0b", 3, None])
def test_what_is_no_directory_is_left_to_be_refused(root: str, directory: object) -> None:
    assert hooks.directory_for(directory) == directory  # type: ignore[arg-type]


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
            with contextlib.nullcontext() if drill is None else pytest.raises(Preempted):
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
    assert [preempted.where(number).first for number in range(2)] == [0, 3]
    assert (preempted.where(3).first, preempted.where(4).first) == (STEPS, 9)
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
    monkeypatch.setattr("keras_preempt.training.run.participant.Hook.boundary", lambda *at: looked.append(at))
    train(tmp_path / "checkpoints")
    assert looked == []


def test_a_signal_from_outside_stops_training_at_the_very_step_at_which_it_was_asked_for(rehearse, pipe):
    path, reader = pipe
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
    outside = {"tell": path, "outside": True}
    preempted = rehearse({"step": 3, **outside}, {"step": STEPS, "at": "validation", "batch": 1, **outside})
    sender.join(60)
    assert [next(iter(each)) for each in told] == ["signal", "arrived"] * 2
    assert [preempted.where(number).first for number in range(3)] == [0, 3, STEPS]
    assert find_parting(rehearse(), preempted) is None


@pytest.mark.parametrize("reshuffle", [True, False])
def test_a_shuffle_of_training_and_validation_is_recorded_if_it_matters(rehearse, monkeypatch, reshuffle):
    def fit(directory: Path) -> None:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        data = tf.data.Dataset.from_tensor_slices((np.ones((20, 1)), np.ones((20, 1))))
        data = data.shuffle(20, seed=1, reshuffle_each_iteration=reshuffle)
        split = {"x": data.skip(4).batch(4), "validation_data": data.take(4).batch(4)}
        model.fit(**split, shuffle=False, verbose=0, callbacks=[PreemptionCallback(directory)])

    monkeypatch.setattr("tests.drilled.test_rehearsal.train", fit)
    said = "the training and the validation data come from one shuffle"
    assert [line.startswith(said) for line in rehearse().shared] == [True] * reshuffle
