"""``keras-preempt export`` gives the weights of a checkpoint, verified, in a file that is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from keras_preempt.cli import export as export_module
from tests.cli.saved_run import Run, begin, contents, flip_a_bit, kernel, mean, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    store = begin(path)
    save(store, 6)
    save(store, 9, round=1)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "net.safetensors"


@pytest.mark.parametrize(("options", "step"), [([], 9), (["--step", "6"], 6)])
def test_weights_are_exported_by_path_bit_for_bit(
    directory: Path, out: Path, options: list[str], step: int, run: Run
) -> None:
    before = contents(directory)
    told, err = run("export", directory, out, *options)
    assert err == ""
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
    tmp_path: Path, out: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.array([np.nan, 0.1, -0.0], np.float32)
    monkeypatch.setattr("tests.cli.saved_run.mean", lambda step, member: value)
    save(begin(tmp_path / "run"), 6)
    told, _ = run("export", str(tmp_path / "run"), str(out))
    assert load_file(out)["net/norm/mean"].tobytes() == value.tobytes()
    assert "different" not in told


def test_a_damaged_checkpoint_is_never_exported(
    directory: Path, out: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    flip_a_bit(next(directory.glob("step-00000009/*/w00001.local.safetensors")))
    told, _ = run("export", directory, out)
    assert "of step 6 in" in told, "the one before it, as a restart would use"
    assert "step-00000009/00001-0001 is not used" in caplog.text
    out.unlink()
    _, err = run("export", directory, out, "--step", "9", code=3)
    assert "Expected a checkpoint of step 9 that can be read" in err
    assert not out.exists(), "a step that was asked for is never exchanged for another"


def test_a_step_that_is_not_there_is_answered_with_those_that_are(
    directory: Path, out: Path, run: Run
) -> None:
    _, err = run("export", directory, out, "--step", "7", code=3)
    assert err.count("\n") == 1
    assert "those of steps 9, 6. Pass one of them." in err
    begin(directory.parent / "new")
    _, err = run("export", directory.parent / "new", out, code=3)
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
    tmp_path: Path, name: str, message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.safetensors").write_text("kept")
    _, err = run("export", "no-such-run", name, code=2)
    assert err.count("\n") == 1
    assert message in err
    assert Path("taken.safetensors").read_text() == "kept"


def test_force_replaces_only_by_what_is_whole(
    directory: Path, out: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write_text("kept")
    real = export_module.stream

    def full(tensors: dict[str, np.ndarray]) -> object:
        yield next(iter(real(tensors)))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export_module, "stream", full)
        _, err = run("export", directory, out, "--force", code=4)
    assert "No space left on device. Choose another folder, or make room." in err
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.read_text() == "kept"
    run("export", directory, out, "--force")
    assert "net/dense/kernel" in load_file(out)


def test_works_on_a_bucket_with_the_permission_to_read(out: Path, run: Run, in_bucket: str) -> None:
    run("export", in_bucket, out)
    assert load_file(out)["net/dense/kernel"].tobytes() == kernel(6).tobytes()
