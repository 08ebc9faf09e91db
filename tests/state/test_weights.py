"""The weights of a run in a model of one's own, found by their names, and in files that plain Keras loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

import keras_preempt
from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.checkpoint import documents, incarnations
from keras_preempt.checkpoint.errors import (
    ForeignDirectory,
    IdentityMismatch,
    StoreUnavailable,
)
from keras_preempt.checkpoint.run_directory import NoSuchCheckpoint
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.main import main
from keras_preempt.state import architecture
from keras_preempt.state.variable_names import named_alike
from tests import fits
from tests.cluster.harness import QUIET_CPU
from tests.cluster.small_fit import Steps

DATA = np.arange(2 * 4 * 4, dtype=np.float32).reshape(-1, 2) / 32


def make_model(units: int = 3) -> keras.Model:
    layers = keras.layers
    inner = [layers.Dense(units, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5, seed=3)]
    return keras.Sequential([keras.Input((2,)), *inner, layers.Dense(1)])


@dataclass
class Run:
    directory: Path
    weights: list[np.ndarray]
    paths: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was preempted in its seventh step, and has saved after the fourth."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse", jit_compile=False)
    weights: list[np.ndarray] = []

    def ended(*_: Any, **__: Any) -> None:
        weights[:] = model.get_weights()

    leave = TerminationConfig(exit_fn=lambda: None)
    ours = PreemptionCallback(directory, termination=leave, save_every="epoch")
    callbacks = [Steps(strike=(1, 2)), fits.Doing(on_train_batch_end=ended), ours]
    with pytest.raises(Preempted):
        model.fit(DATA, DATA.sum(1), batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return Run(directory, weights, [weight.path for weight in model.weights])


@pytest.fixture
def copied(trained: Run, tmp_path: Path) -> Path:
    """The run's directory, for a test that changes it."""
    return Path(shutil.copytree(trained.directory, tmp_path / "run"))


def assert_same(model: keras.Model, weights: list[np.ndarray]) -> None:
    for variable, value, wanted in zip(model.weights, model.get_weights(), weights, strict=True):
        assert value.tobytes() == wanted.tobytes(), variable.path


def test_loads_the_weights_bit_for_bit_and_nothing_else(trained: Run) -> None:
    model = make_model()
    assert [weight.path for weight in model.weights] != trained.paths, "Keras has counted on"
    model.compile(keras.optimizers.Adam(), "mse")
    optimizer = [variable.numpy().copy() for variable in model.optimizer.variables]
    seeds = [v.numpy().copy() for v in model.variables if not any(v is w for w in model.weights)]
    assert seeds
    assert keras_preempt.load_weights(model, trained.directory) == 7
    assert_same(model, trained.weights)
    assert all(map(np.array_equal, optimizer, [v.numpy() for v in model.optimizer.variables]))
    left = [v.numpy() for v in model.variables if not any(v is w for w in model.weights)]
    assert all(map(np.array_equal, seeds, left))


def test_loads_a_given_step_and_says_which_there_are(trained: Run) -> None:
    model = make_model()
    assert keras_preempt.load_weights(model, trained.directory, step=4) == 4
    assert any(not np.array_equal(*pair) for pair in zip(model.get_weights(), trained.weights, strict=True))
    with pytest.raises(NoSuchCheckpoint, match=r"of step 5 .*those of steps 7, 4\. Pass one of them"):
        keras_preempt.load_weights(model, trained.directory, step=5)
    with pytest.raises(
        ValueError, match=r"Expected step to be the number of a training step, or None\. Received: '4'"
    ):
        keras_preempt.load_weights(model, trained.directory, step="4")  # type: ignore[arg-type]


def test_each_replica_keeps_its_own_values_and_every_one_is_given_loaded_weights(trained: Run) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.state.two_replicas", str(trained.directory)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **QUIET_CPU},
    )
    assert done.returncode == 0, done.stderr
    wanted = [weight.tobytes().hex() for weight in trained.weights]
    assert done.stdout.splitlines() == [f"{value} {value}" for value in wanted]


def test_another_model_is_refused_by_name_and_left_alone(trained: Run) -> None:
    model = make_model(units=4)
    before = [value.copy() for value in model.get_weights()]
    with pytest.raises(IdentityMismatch, match=r"kernel: expected float32\[2, 3\], received float32\[2, 4\]"):
        keras_preempt.load_weights(model, trained.directory)
    assert_same(model, before)
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="mine")])
    with pytest.raises(IdentityMismatch, match=r"mine/kernel: expected nothing, received float32\[2, 3\]"):
        keras_preempt.load_weights(other, trained.directory)


def test_a_model_without_weights_yet_and_what_is_no_run_are_refused(trained: Run, tmp_path: Path) -> None:
    bare = keras.Sequential([keras.layers.Dense(1)], name="bare")
    expected = r"Expected a built model\. Received: 'bare', which has no weights yet"
    with pytest.raises(ValueError, match=expected):
        keras_preempt.load_weights(bare, trained.directory)
    with pytest.raises(ForeignDirectory, match="which is empty"):
        keras_preempt.load_weights(make_model(), tmp_path)


def test_a_damaged_checkpoint_gives_the_one_before(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    next(copied.glob("step-00000007/*/*mirrored*")).write_bytes(b"")
    assert keras_preempt.load_weights(make_model(), copied) == 4
    assert "is not used" in caplog.text


@pytest.mark.parametrize("name", ["net.weights.h5", "net.keras"])
def test_an_export_is_loaded_by_plain_keras(
    trained: Run, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    assert main(["export", str(trained.directory), str(out)]) == 0, capsys.readouterr().err
    if name.endswith(".h5"):
        model = make_model()
        model.load_weights(out)
    else:
        model = keras.models.load_model(out)
    assert_same(model, trained.weights)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_export_takes_the_model_of_a_program_or_of_a_file(
    trained: Run, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copied / "models")
    monkeypatch.chdir(Path(__file__).parents[2])
    for model in ("tests.state.test_weights:make_model", str(tmp_path / "first.keras")):
        out = tmp_path / ("first.keras" if "tests" in model else "second.weights.h5")
        assert main(["export", str(copied), str(out), "--model", model]) == 0
    loaded = make_model()
    loaded.load_weights(tmp_path / "second.weights.h5")
    assert_same(loaded, trained.weights)


def test_what_lies_beside_the_checkpoints_cannot_run_code(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "models" / "00001.json"
    kept = documents.decode_document(path.read_bytes(), "")
    (layer,) = [one for one in kept["model"]["config"]["layers"] if one["class_name"] == "Dropout"]
    for name, module in (("Popen", "subprocess"), ("Lambda", "keras.layers"), ("__lambda__", None)):
        layer["class_name"], layer["module"] = name, module
        path.write_bytes(documents.encode_document(kept))
        assert main(["export", str(copied), str(tmp_path / "net.keras")]) == 3
        err = capsys.readouterr().err
        assert "Expected a model of Keras' own layers in models/00001.json" in err
        assert name in err
        assert "--model" in err


class Scaled(keras.layers.Layer):
    """A layer of the user's own, which does not say how to make it."""

    def __init__(self, by: object) -> None:
        super().__init__()
        self.by = by

    def call(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize(
    "make", [lambda: Scaled(object()), lambda: keras.layers.Lambda(lambda x: x)], ids=["own", "lambda"]
)
def test_a_model_that_cannot_be_described_is_no_error_and_no_code_gets_into_the_directory(
    make: Callable[[], keras.layers.Layer], tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    described = architecture.describe(keras.Sequential([keras.Input((2,)), make(), keras.layers.Dense(1)]))
    architecture.keep(store, 1, described)
    assert described is None
    assert store.children("") == []


def test_a_storage_that_fails_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    monkeypatch.setattr(type(store), "create", mock.Mock(side_effect=StoreUnavailable("The disk is full.")))
    architecture.keep(store, 1, {"model": {}})
    assert "The architecture could not be kept beside the checkpoints: The disk is full." in caplog.text


def test_a_start_keeps_its_settings_and_the_architecture_again_only_where_it_differs(copied: Path) -> None:
    store = open_store(copied)
    assert incarnations.read_claim(store, 1)["retention"] == {"max_to_keep": 2, "keep_every": None}
    same = documents.read_document(store, "models/00001.json")
    same.pop("format")
    architecture.keep(store, 2, same)
    assert store.children("models") == ["00001.json"]
    other = architecture.describe(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    architecture.keep(store, 3, other)
    assert store.children("models") == ["00001.json", "00003.json"]
    assert architecture.newest_file(store, 2) == "models/00001.json"


NET = ["net/dense/kernel", "net/dense_1/kernel", "net/norm/beta"]


def test_equal_names_are_themselves_whatever_the_order() -> None:
    assert named_alike(NET, NET[::-1]) == {name: name for name in NET}


COUNTED_ON = ["net_2/dense_4/kernel", "net_2/dense_5/kernel", "net_2/norm_1/beta"]
BELOW_THE_MODEL = ["dense/kernel", "dense_1/kernel", "norm/beta"]  # Of one that is made of its description.
BELOW_COUNTED_ON = ["dense_3/kernel", "dense_4/kernel", "norm_1/beta"]
SHIFTED = ["net/dense_1/kernel", "net/dense_2/kernel", "net/norm/beta"]  # Onto names that are there too.
DEEP, BELOW_DEEP = ["net/encoder/dense/kernel", "net/decoder/norm/beta"], ["dense/kernel", "norm/beta"]
NUMBERED = ["block_00/dense/kernel", "block_01/dense/kernel"]  # The numbers are part of the names.
NUMBERED_ON = ["block_00/dense_7/kernel", "block_01/dense_7/kernel"]


@pytest.mark.parametrize(
    ("names", "others"),
    [
        *((COUNTED_ON, NET), (NET, COUNTED_ON), (SHIFTED, NET), (BELOW_THE_MODEL, NET)),
        *((BELOW_COUNTED_ON, NET), (NET, BELOW_COUNTED_ON), (BELOW_DEEP, DEEP), (NUMBERED_ON, NUMBERED)),
    ],
)
def test_numbers_and_prefixes_that_keras_gave_are_taken_back(names: list[str], others: list[str]) -> None:
    assert named_alike(names, others) == dict(zip(names, others, strict=True))


def test_names_that_only_end_alike_are_not_matched_where_that_leaves_a_choice() -> None:
    twice = ["net/decoder/dense/kernel", "net/encoder/dense/kernel"]
    for names in (["dense/kernel", "dense/bias"], ["dense/kernel", "encoder/dense/kernel"]):
        assert named_alike(names, twice) is None


@pytest.mark.parametrize(
    "others",
    [
        ["net/dense/kernel", "net/dense_2/kernel", "net/norm/beta"],  # one is counted on, one is not
        ["net/conv/kernel", "net/dense_1/kernel", "net/norm/beta"],
        ["net/dense/kernel", "net/dense_1/kernel"],
        [*NET, "net/dense_2/kernel"],
        ["net/dense/kernel", "net/dense_1/bias", "net/norm/beta"],
        [],
    ],
)
def test_another_model_is_not_taken_for_it(others: list[str]) -> None:
    assert named_alike(others, NET) is None
