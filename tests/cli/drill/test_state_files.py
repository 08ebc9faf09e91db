"""Files of trainers are compared value by value, whatever library has written them, and damage is told."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from unittest import mock

import h5py
import ml_dtypes
import numpy as np
import pytest

from keras_preempt.checkpoint.tensors import stream
from keras_preempt.cli.drill.state_files import UnreadableFile, compare_files, read_content

ONE, OTHER = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([0, 1, 2, 3, 4, 5.5], np.float32).reshape(2, 3),
)


def safetensors(path: Path, value: np.ndarray, note: str = "") -> None:
    chunks = stream({"kernel": value, "half": value.astype(ml_dtypes.bfloat16)})
    path.write_bytes(b"".join(chunk.tobytes() for chunk in chunks))


def npz(path: Path, value: np.ndarray, note: str = "") -> None:
    np.savez(path, kernel=value, odd=np.array([note, None], object))


def npy(path: Path, value: np.ndarray, note: str = "") -> None:
    np.save(path, value)


def h5(path: Path | io.BytesIO, value: np.ndarray, note: str = "") -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/dense/kernel", data=value).attrs["note"] = note
        file.create_dataset("names", data=["a", note or "b"])


def keras(path: Path, value: np.ndarray, note: str = "") -> None:
    weights = io.BytesIO()
    h5(weights, value, note)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"date_saved": str(path), "keras_version": "3"}))
        archive.writestr("config.json", json.dumps({"layers": [note]}))
        archive.writestr("model.weights.h5", weights.getvalue())


def torch(path: Path, value: np.ndarray, note: str = "") -> None:
    library = pytest.importorskip("torch")
    tensor = library.from_numpy(value.copy())
    state = {
        "model": {"kernel": tensor, "half": tensor.bfloat16()},
        "epoch": 3,
        "names": [note],
        7: {"lr": 0.1},
    }
    library.save(state, path)


WRITERS = {
    "a.safetensors": safetensors,
    "a.npz": npz,
    "a.npy": npy,
    "a.h5": h5,
    "a.weights.h5": h5,
    "a.keras": keras,
    "a.pt": torch,
    "a.pth": torch,
    "a.ckpt": torch,
}


def written(folder: Path, name: str, value: np.ndarray, note: str = "") -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    WRITERS[name](folder / name, value, note)
    return {name: folder / name}


@pytest.mark.parametrize("name", WRITERS)
def test_equal_tensors_are_equal_and_one_value_is_named_with_its_distance(tmp_path, name):
    one = written(tmp_path / "one", name, ONE)
    assert compare_files(one, written(tmp_path / "same", name, ONE)).identical
    found = compare_files(one, written(tmp_path / "other", name, OTHER))
    assert not found.identical
    assert any("1 of 6 values, by at most 0.5" in str(each) for each in found.tensor_differences)
    assert all(str(each).startswith(f"{name}: ") for each in found.tensor_differences)
    assert found.files == 1
    assert found.tensors >= 1


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.keras", "a.pt"])
def test_what_is_no_tensor_is_compared_too(tmp_path, name):
    one = written(tmp_path / "one", name, ONE, "here")
    found = compare_files(one, written(tmp_path / "other", name, ONE, "there"))
    assert not found.tensor_differences
    assert found.state_differences
    assert not found.identical


def test_any_other_file_is_compared_byte_for_byte(tmp_path):
    (tmp_path / "one").write_bytes(b"epoch 1\nloss 2")
    (tmp_path / "two").write_bytes(b"epoch 1\nloss 3")
    assert compare_files({"log": tmp_path / "one"}, {"log": tmp_path / "one"}).identical
    found = compare_files({"log": tmp_path / "one"}, {"log": tmp_path / "two"})
    assert found.state_differences == ["log: different from byte 13 on, of 14 and 14 bytes"]


def test_a_file_of_one_run_only_is_a_difference(tmp_path):
    (tmp_path / "one").write_bytes(b"")
    assert compare_files({"a": tmp_path / "one"}, {}).state_differences == ["a: only in the undisturbed run"]
    assert not compare_files({}, {}).identical


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("left", [0, 30])
def test_a_file_that_ends_early_is_refused_with_what_to_do(tmp_path, name, left):
    whole = written(tmp_path / "one", name, ONE)
    part = tmp_path / name
    part.write_bytes(whole[name].read_bytes()[:left])
    if name == "a.ckpt":  # Others use this ending too.
        assert not compare_files(whole, {name: part}).identical
        return
    with pytest.raises(
        UnreadableFile, match=f"^{name} of the preempted run: Expected .*Leave it out|leave out one"
    ):
        compare_files(whole, {name: part})


@pytest.mark.parametrize(("name", "library"), [("a.keras", "h5py"), ("a.h5", "h5py"), ("a.pt", "torch")])
def test_a_library_that_is_not_installed_is_named(tmp_path, name, library):
    if library == "torch":
        (tmp_path / name).write_bytes(b"")
    else:
        written(tmp_path, name, ONE)
    with (
        mock.patch.dict(sys.modules, {library: None}),
        pytest.raises(UnreadableFile, match=f"Expected {library}, which .* pip install {library}"),
    ):
        read_content(tmp_path / name)


class Kept:
    """An object of a script."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.itself = self


def test_objects_in_a_file_of_torch_are_compared_by_their_attributes(tmp_path):
    library = pytest.importorskip("torch")
    for name, value in (("one.pt", 1.0), ("same.pt", 1.0), ("other.pt", 2.0)):
        library.save({"kept": Kept(value)}, tmp_path / name)
    one = {"a.pt": tmp_path / "one.pt"}
    assert compare_files(one, {"a.pt": tmp_path / "same.pt"}).identical
    found = compare_files(one, {"a.pt": tmp_path / "other.pt"})
    assert found.state_differences == ["a.pt: content/kept/value: 1.0 and 2.0"]


def test_a_pickle_in_a_file_of_numpy_is_not_run(tmp_path):
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("harm",)

    np.savez(tmp_path / "a.npz", odd=np.array([Harm()], object))
    assert read_content(tmp_path / "a.npz").tensors == {}
