"""``keras-preempt export`` gives the weights of a checkpoint, verified, in a file that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from keras_preempt.cli import export_formats
from tests.cli.saved_run import begin, bucket, contents, kernel, mean, run, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    store = begin(path)
    save(store, 6)
    save(store, 9, round=1)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "net.safetensors"


@pytest.mark.parametrize(("options", "step"), [([], 9), (["--step", "6"], 6)])
def test_weights_are_exported_by_path_bit_for_bit(
    directory: Path, out: Path, options: list[str], step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(directory)
    code, told, err = run(capsys, "export", str(directory), str(out), *options)
    assert (code, err) == (0, "")
    tensors = load_file(out)
    assert tensors.keys() == {"net/dense/kernel", "net/norm/mean"}, "no optimizer, metrics or seeds"
    assert tensors["net/dense/kernel"].tobytes() == kernel(step).tobytes()
    np.testing.assert_array_equal(tensors["net/norm/mean"], (mean(step, 0) + mean(step, 1)) / 2)
    assert f"2 weights (60 B) of step {step} in {directory}" in told
    assert "different on the replicas, averaged: net/norm/mean" in told
    assert "left out, since the format has no strings: net/words" in told
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert contents(directory) == before
    with safe_open(out, "numpy") as file:
        assert list(file.keys())


def test_replicas_that_agree_are_exported_as_they_are(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.array([np.nan, 0.1, -0.0], np.float32)
    monkeypatch.setattr("tests.cli.saved_run.mean", lambda step, member: value)
    save(begin(tmp_path / "run"), 6)
    _, told, _ = run(capsys, "export", str(tmp_path / "run"), str(out))
    assert load_file(out)["net/norm/mean"].tobytes() == value.tobytes()
    assert "different" not in told


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_checkpoint_is_never_exported(
    directory: Path, out: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    flip(next(directory.glob("step-00000009/*/w00001.local.safetensors")))
    code, told, _ = run(capsys, "export", str(directory), str(out))
    assert code == 0
    assert "of step 6 in" in told, "the one before it, as a restart would use"
    assert "step-00000009/00001-0001 is not used" in caplog.text
    out.unlink()
    code, _, err = run(capsys, "export", str(directory), str(out), "--step", "9")
    assert code == 3
    assert "Expected a checkpoint of step 9 that can be read" in err
    assert not out.exists(), "a step that was asked for is never exchanged for another"


def test_a_step_that_is_not_there_is_answered_with_those_that_are(
    directory: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "export", str(directory), str(out), "--step", "7")
    assert (code, err.count("\n")) == (3, 1)
    assert "those of steps 9, 6. Pass one of them." in err
    begin(directory.parent / "new")
    code, _, err = run(capsys, "export", str(directory.parent / "new"), str(out))
    assert code == 3
    assert "a run that has saved none yet" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.h5", "Expected OUT to end with one of .weights.h5, .keras, .safetensors"),
        (".keras", "Expected OUT to end with"),
        ("nowhere/net.keras", "in a folder that exists"),
        ("gs://bucket/net.keras", "on a local disk"),
        ("taken.safetensors", "Pass --force to replace it"),
    ],
)
def test_a_bad_name_is_refused_before_anything_is_read(
    tmp_path: Path,
    name: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.safetensors").write_text("kept")
    code, _, err = run(capsys, "export", "no-such-run", name)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert Path("taken.safetensors").read_text() == "kept"


def test_force_replaces_only_by_what_is_whole(
    directory: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write_text("kept")
    real = export_formats.stream

    def full(tensors: dict[str, np.ndarray]) -> object:
        yield next(iter(real(tensors)))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export_formats, "stream", full)
        code, _, err = run(capsys, "export", str(directory), str(out), "--force")
    assert code == 4
    assert "No space left on device. Choose another folder, or make room." in err
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.read_text() == "kept"
    assert run(capsys, "export", str(directory), str(out), "--force")[0] == 0
    assert "net/dense/kernel" in load_file(out)


def test_works_on_a_bucket_with_the_permission_to_read(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(monkeypatch) as gcs:
        store = begin("gs://bucket/runs/1")
        save(store, 6)
        store.close()
        gcs.deny.update(("create", "delete", "update", "bucket"))
        code, _, err = run(capsys, "export", "gs://bucket/runs/1", str(out))
        assert code == 0, err
    assert load_file(out)["net/dense/kernel"].tobytes() == kernel(6).tobytes()


def test_keras_formats_without_an_architecture_ask_for_the_model(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "export", str(directory), str(tmp_path / "net.keras"))
    assert code == 3
    assert "--model train.py:make_model" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_such_module:make", "Expected --model to name a module that can be imported here"),
        (
            "nothing.py:make",
            "Expected --model to name a Python file. Received: 'nothing.py', which does not exist",
        ),
        ("program.py:missing", "Expected a function named 'missing' in program.py"),
        ("program.py:number", "Expected program.py:number to return a keras.Model. Received: int"),
        ("program", "Expected --model as MODULE:FUNCTION"),
        ("nothing.keras", "Expected --model to be a file that Keras can load"),
        ("nothing.json", "Expected --model to be a file that Keras can load"),
    ],
)
def test_a_model_that_cannot_be_made_is_named(
    directory: Path,
    tmp_path: Path,
    model: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("program.py").write_text("def number(): return 3\n")
    code, _, err = run(capsys, "export", str(directory), "net.keras", "--model", model)
    sys.modules.pop("program", None)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not os.path.exists("net.keras")


@pytest.mark.parametrize("caught", [False, True], ids=["at the top", "in a try"])
@pytest.mark.parametrize(
    "call", ["fit(x, x, verbose=0)", "fit(x, x, callbacks=[ours], verbose=0)", "train_on_batch(x, x)"]
)
def test_a_program_that_would_train_when_it_is_imported_is_refused_and_trains_nothing(
    directory: Path,
    tmp_path: Path,
    call: str,
    caught: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import keras

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = contents(directory), [vars(keras.Model).get(name) for name in ("fit", "train_on_batch")]
    training = f"made.{call}"
    if caught:  # By what a program may expect of fit.
        training = f"try:\n    {training}\nexcept ValueError:\n    pass"
    Path("program.py").write_text(
        "import keras, numpy as np\n"
        "from keras_preempt import PreemptionCallback\n"
        "def make():\n"
        "    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    return model\n"
        "made, x = make(), np.ones((4, 1))\n"
        f"ours = PreemptionCallback({str(tmp_path / 'trained')!r})\n"
        f"{training}\n"
    )
    code, _, err = run(capsys, "export", str(directory), "net.keras", "--model", "program.py:make")
    made = sys.modules.pop("program").made
    assert code == 2
    assert f"Received: a call of model.{call.partition('(')[0]}" in err
    assert 'Put what trains under `if __name__ == "__main__":`' in err
    assert not (tmp_path / "trained").exists()
    assert int(made.optimizer.iterations.numpy()) == 0
    assert not os.path.exists("net.keras")
    assert before == (
        contents(directory),
        [vars(keras.Model).get(name) for name in ("fit", "train_on_batch")],
    )


def test_a_program_that_trains_only_when_it_is_run_is_exported(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("program.py").write_text(
        "import keras\n"
        "def make():\n"
        "    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        'if __name__ == "__main__":\n'
        "    make().fit([1], [1])\n"
    )
    code, _, err = run(capsys, "export", str(directory), "net.keras", "--model", "program.py:make")
    sys.modules.pop("program", None)
    assert (code, "Expected a model with the weights" in err) == (
        3,
        True,
    )  # Made, and found to be another model.
