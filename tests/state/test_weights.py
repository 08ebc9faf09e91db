"""The weights of a run in a model of one's own, and in files that plain Keras loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    UnsupportedFormat,
)
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.run_directory import NoSuchCheckpoint
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.main import main
from keras_preempt.state import architecture
from tests.cluster.harness import QUIET_CPU

STEPS, BATCH = 4, 4
DATA = np.arange(2 * STEPS * BATCH, dtype=np.float32).reshape(-1, 2) / 32


class Strike(keras.callbacks.Callback):
    """Sends this process SIGTERM before a step; keeps the weights that the step before has left."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._left = step
        self.weights: list[np.ndarray] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._left == 0:
            self.weights = self.model.get_weights()
            os.kill(os.getpid(), signal.SIGTERM)
        self._left -= 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.weights = self.model.get_weights()

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def make_model(units: int = 3) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(units, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=3),
            layers.Dense(1),
        ]
    )


def train(directory: Path, model: keras.Model, strike: Strike) -> None:
    leave = TerminationConfig(exit_fn=lambda: None)
    with pytest.raises(Preempted):
        model.fit(
            DATA,
            DATA.sum(axis=1),
            batch_size=BATCH,
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[strike, PreemptionCallback(directory, termination=leave, save_every="epoch")],
        )


class Run:
    def __init__(self, directory: Path, weights: list[np.ndarray], paths: list[str]) -> None:
        self.directory, self.weights, self.paths = directory, weights, paths


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was preempted in its seventh step, and has saved after the fourth."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse")
    strike = Strike(6)
    train(directory, model, strike)
    return Run(directory, strike.weights, [weight.path for weight in model.weights])


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
    with pytest.raises(ValueError, match=r"Expected step to be an optimizer step, or None\. Received: '4'"):
        keras_preempt.load_weights(model, trained.directory, step="4")  # type: ignore[arg-type]


def test_loads_into_every_replica_of_a_strategy(trained: Run) -> None:
    program = (
        "import sys\n"
        "import tensorflow as tf\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "import keras_preempt\n"
        "from tests.state.test_weights import make_model\n"
        "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
        "with strategy.scope():\n"
        "    model = make_model()\n"
        "    keras_preempt.load_weights(model, sys.argv[1])\n"
        "for weight in model.weights:\n"
        "    print(*(one.numpy().tobytes().hex() for one in strategy.experimental_local_results(weight.value)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(trained.directory)],
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


def test_a_model_without_weights_yet_is_refused(trained: Run) -> None:
    with pytest.raises(
        ValueError, match=r"Expected a built model\. Received: 'bare', which has no weights yet"
    ):
        keras_preempt.load_weights(keras.Sequential([keras.layers.Dense(1)], name="bare"), trained.directory)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectory, match="which is empty"):
        keras_preempt.load_weights(make_model(), tmp_path)


def test_a_damaged_newest_checkpoint_gives_the_one_before(
    trained: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Path(shutil.copytree(trained.directory, tmp_path / "run"))
    next(directory.glob("step-00000007/*/*mirrored*")).write_bytes(b"")
    assert keras_preempt.load_weights(make_model(), directory) == 4
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
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(shutil.copytree(trained.directory, tmp_path / "run"))
    shutil.rmtree(directory / "models")
    monkeypatch.chdir(Path(__file__).parents[2])
    for model in ("tests.state.test_weights:make_model", str(tmp_path / "first.keras")):
        out = tmp_path / ("first.keras" if "tests" in model else "second.weights.h5")
        assert main(["export", str(directory), str(out), "--model", model]) == 0
    loaded = make_model()
    loaded.load_weights(tmp_path / "second.weights.h5")
    assert_same(loaded, trained.weights)


def test_what_lies_beside_the_checkpoints_cannot_run_code(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Path(shutil.copytree(trained.directory, tmp_path / "run"))
    path = directory / "models" / "00001.json"
    kept = documents.decode(path.read_bytes(), "")
    (layer,) = [one for one in kept["model"]["config"]["layers"] if one["class_name"] == "Dropout"]
    for name, module in (("Popen", "subprocess"), ("Lambda", "keras.layers"), ("__lambda__", None)):
        layer["class_name"], layer["module"] = name, module
        path.write_bytes(documents.encode(kept))
        assert main(["export", str(directory), str(tmp_path / "net.keras")]) == 3
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


def test_a_model_that_cannot_be_described_is_no_error(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), Scaled(object()), keras.layers.Dense(1)])
    store = open_store(tmp_path)
    described = architecture.describe(model)
    architecture.keep(store, 1, described)
    assert described is None
    assert store.children("") == []


def test_a_storage_that_fails_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise StoreUnavailable("The disk is full.")

    store = open_store(tmp_path)
    monkeypatch.setattr(type(store), "create", fail)
    architecture.keep(store, 1, {"model": {}})
    assert "The architecture could not be kept beside the checkpoints: The disk is full." in caplog.text


def test_no_code_of_a_lambda_gets_into_the_directory_and_no_warning_is_told() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x), keras.layers.Dense(1)])
    assert architecture.describe(model) is None


def test_the_architecture_is_written_again_only_where_it_differs(trained: Run, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(trained.directory, tmp_path / "run"))
    store = open_store(directory)
    same = documents.read(store, "models/00001.json")
    same.pop("format")
    architecture.keep(store, 2, same)
    assert store.children("models") == ["00001.json"]
    other = architecture.describe(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    architecture.keep(store, 3, other)
    assert store.children("models") == ["00001.json", "00003.json"]
    assert architecture.newest_file(store, 2) == "models/00001.json"


def test_a_start_keeps_its_settings_with_its_claim(trained: Run) -> None:
    claim = incarnations.read(open_store(trained.directory), 1)
    assert claim["retention"] == {"max_to_keep": 2, "keep_every": None}


def test_a_newer_format_is_refused_with_the_version_that_is_needed(trained: Run, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(trained.directory, tmp_path / "run"))
    body = json.loads((directory / RUN).read_bytes())
    body.pop("crc32c")
    (directory / RUN).write_bytes(documents.encode({**body, "format": 2}))
    with pytest.raises(
        UnsupportedFormat, match="Install a keras-preempt release that reads format version 2"
    ):
        keras_preempt.load_weights(make_model(), directory)
