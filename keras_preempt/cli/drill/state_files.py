"""Compares files in which trainers leave what they have trained: tensors value by value, anything else byte for byte.

No library is imported before a file needs it. Pickles inside of NumPy's files are compared as bytes and never run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_preempt.checkpoint.dtypes import NAMES as ELEMENT_TYPES
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.tensors import Array, parse_header
from keras_preempt.checkpoint.values import Value
from keras_preempt.cli.compare import NAMES, ComparedTensor, Comparison, compare_json, compare_tensors

_PICKLED = "allow_pickle"  # NumPy names its option where an array holds Python objects.
_SAVED_AT = "date_saved"  # In the metadata of a .keras file.
_LENGTH = 8  # bytes before the header of a safetensors file


class UnreadableFile(Exception):
    """A file is not what its name says, or a library that reads it is not installed; says what to do."""


@dataclass
class FileContent:
    """What a file holds.

    Attributes:
        tensors: By name.
        other: Everything else, as JSON has it, or with bytes in it.
    """

    tensors: dict[str, Array] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)


def read_content(path: Path) -> FileContent:
    """Reads a file by its name: safetensors, NumPy's, PyTorch's, Keras' and HDF5; any other is bytes.

    Raises:
        UnreadableFile: It is damaged, or its library is missing.
    """
    for endings, read in _READERS.items():
        if path.name.lower().endswith(endings):
            try:
                return read(path)
            except UnreadableFile:
                raise
            except (*_DAMAGED, CorruptCheckpoint) as error:
                raise UnreadableFile(
                    f"Expected {path.name} to be a whole {endings[0]} file. Received: {error!s:.300}. Was it still "
                    "being written, or does another program write it? Leave it out of --state."
                ) from error
    return FileContent(other={"bytes": path.read_bytes()})


_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, RecursionError)


def _read_safetensors(path: Path) -> FileContent:
    data = path.read_bytes()
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or end > len(data):
        raise ValueError(f"a header of {end - _LENGTH} bytes in a file of {len(data)}")
    content = FileContent(other={"metadata": json.loads(data[_LENGTH:end]).get("__metadata__")})
    for tensor in parse_header(data[_LENGTH:end], len(data) - end, path.name):
        size = Value(tensor.key, tensor.dtype, tensor.shape).nbytes
        flat = np.frombuffer(data, np.uint8, size, end + tensor.begin)
        content.tensors[tensor.key] = flat.view(dtype_of(tensor.dtype)).reshape(tensor.shape)
    return content


def _read_numpy(path: Path) -> FileContent:
    content = FileContent()
    if path.name.lower().endswith(".npy"):
        _add_array(content, path.stem, path.read_bytes())
        return content
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            _add_array(content, name.removesuffix(".npy"), archive.read(name))
    return content


def _add_array(content: FileContent, name: str, data: bytes) -> None:
    try:
        content.tensors[name] = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        if _PICKLED not in str(error):
            raise
        content.other[name] = data


def _read_keras(path: Path) -> FileContent:
    content = FileContent()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith(".h5"):
                _add_hdf5(content, io.BytesIO(data), f"{name}/")
            elif name.endswith(".json"):
                content.other[name] = json.loads(data)
            else:
                content.other[name] = data
    metadata = content.other.get("metadata.json")
    if isinstance(metadata, dict):
        metadata.pop(_SAVED_AT, None)  # Two runs differ in it, and it is nothing that was trained.
    return content


def _read_hdf5(path: Path) -> FileContent:
    content = FileContent()
    _add_hdf5(content, path, "")
    return content


def _add_hdf5(content: FileContent, file: Path | io.BytesIO, prefix: str) -> None:
    h5py = _library("h5py", "reads .keras and .h5 files")

    def add(name: str, item: Any) -> None:
        for attribute, value in item.attrs.items():
            content.other[f"{prefix}{name}@{attribute}"] = np.asarray(value).tolist()
        if isinstance(item, h5py.Dataset):
            value = np.asarray(item[()])
            if value.dtype.hasobject:
                content.other[f"{prefix}{name}"] = value.tolist()
            else:
                content.tensors[f"{prefix}{name}"] = value

    with h5py.File(file, "r") as opened:
        add("", opened)
        opened.visititems(add)


def _read_torch(path: Path) -> FileContent:
    torch = _library("torch", f"reads {path.name}")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError):  # It holds objects, or is damaged.
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=False)
        except (pickle.UnpicklingError, RuntimeError, AttributeError, ImportError) as error:
            raise UnreadableFile(
                f"Expected torch.load to read {path.name}. Received: {error!s:.300}. A file of state_dicts and plain "
                "values can always be compared; leave out one that holds objects of the script."
            ) from error
    content = FileContent()
    content.other["content"] = _without_tensors(loaded, "", content.tensors, torch, ())
    return content


def _read_perhaps_torch(path: Path) -> FileContent:
    """Of two endings that others use too, PyTorch's files are archives with a pickle in them."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        if any(name.endswith("/data.pkl") for name in archive.namelist()):
            return _read_torch(path)
    return FileContent(other={"bytes": path.read_bytes()})


def _without_tensors(
    value: Any, place: str, tensors: dict[str, Array], torch: Any, within: tuple[int, ...]
) -> Any:
    """Returns a value as JSON has it, with a word in the place of each tensor, which is added to `tensors`.

    `within` are the ids of the objects that the value is in: one that holds itself is not followed again.
    """
    if isinstance(value, torch.Tensor):
        tensors[place.lstrip("/")] = _array(value, torch)
        return "a tensor"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        tensors[place.lstrip("/")] = value
        return "an array"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if id(value) in within:
        return "what it is in"
    inner = (*within, id(value))
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
    elif isinstance(value, (list, tuple)):
        return [
            _without_tensors(each, f"{place}/{number}", tensors, torch, inner)
            for number, each in enumerate(value)
        ]
    elif isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        items = vars(value)
    else:
        return pickle.dumps(value)
    return {
        str(key): _without_tensors(each, f"{place}/{key}", tensors, torch, inner)
        for key, each in items.items()
    }


def _array(tensor: Any, torch: Any) -> Array:
    """Returns the values of a tensor of any element type, in C order."""
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    dense = dense.cpu().resolve_conj().resolve_neg().contiguous()
    name = str(dense.dtype).removeprefix("torch.")
    try:
        return np.asarray(dense.numpy())
    except TypeError:  # NumPy has no such type.
        flat = np.asarray(dense.reshape(-1).view(torch.uint8).numpy())
        return flat.view(dtype_of(name)).reshape(tuple(dense.shape)) if name in ELEMENT_TYPES else flat


def _library(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnreadableFile(
            f"Expected {name}, which {what}, where keras-preempt is installed. Received: none. pip install {name}, or "
            "leave these files out of --state."
        ) from None


_READERS: Mapping[tuple[str, ...], Callable[[Path], FileContent]] = {
    (".safetensors",): _read_safetensors,
    (".npz", ".npy"): _read_numpy,
    (".pt", ".pth"): _read_torch,
    (".ckpt", ".bin"): _read_perhaps_torch,
    (".keras",): _read_keras,
    (".h5", ".hdf5"): _read_hdf5,
}


def check_readable(files: Mapping[str, Path]) -> None:
    """Raises UnreadableFile if a file of the undisturbed run cannot be read."""
    for name, path in sorted(files.items()):
        _content_of(name, NAMES[0], path)


def _content_of(name: str, run: str, path: Path) -> FileContent:
    try:
        return read_content(path)
    except UnreadableFile as error:
        raise UnreadableFile(f"{name} of {run}: {error}") from error


def compare_files(one: Mapping[str, Path], other: Mapping[str, Path]) -> Comparison:
    """Compares the files of the undisturbed and of the preempted run, by their names.

    Raises:
        UnreadableFile: One of them cannot be read; says of which run it is.
    """
    tensors = size = 0
    different: list[ComparedTensor] = []
    state: list[str] = []
    for name in sorted({**one, **other}):
        if name not in one or name not in other:
            state.append(f"{name}: only in {NAMES[name not in one]}")
            continue
        left, right = (
            _content_of(name, run, files[name]) for run, files in zip(NAMES, (one, other), strict=True)
        )
        tensors += len(left.tensors)
        size += sum(array.nbytes for array in left.tensors.values())
        different += [
            ComparedTensor(f"{name}: {each.name}", each.shape, each.difference, each.largest)
            for each in compare_tensors(left.tensors, right.tensors, NAMES)
            if each.difference is not None
        ]
        state += _other_differences(name, left.other, right.other)
        size += sum(len(value) for value in left.other.values() if isinstance(value, bytes))
    return Comparison(0, tensors, size, different, state, files=len(one))


def _other_differences(name: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Sequence[str]:
    one, other = left.get("bytes"), right.get("bytes")
    if not isinstance(one, bytes) or not isinstance(other, bytes):
        return [f"{name}: {line}" for line in compare_json(left, right, names=NAMES)]
    if one == other:
        return []
    length = min(len(one), len(other))
    unequal = np.flatnonzero(np.frombuffer(one[:length], np.uint8) != np.frombuffer(other[:length], np.uint8))
    first = int(unequal[0]) if len(unequal) else length
    return [f"{name}: different from byte {first} on, of {len(one)} and {len(other)} bytes"]
