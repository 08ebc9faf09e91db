from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.dtypes import NAMES, dtype_of
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array, new_places, read_to_places, verify_file, write_tensors
from keras_preempt.checkpoint.values import elements
from tests.checkpoint.builders import little_memory_taken, snapshot

PLAIN_NUMPY = [name for name in NAMES if not name.startswith(("bfloat", "float8"))]


def array(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random bits, so also infinities, denormals and NaNs with payloads."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    count = elements(shape) * dtype_of(dtype).itemsize
    return random.integers(0, 256, count, dtype=np.uint8).view(dtype_of(dtype)).reshape(shape)


tensor_dicts = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and name.isprintable()),
    st.builds(
        array,
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
        st.integers(0, 2**32),
    ),
    max_size=8,
)


def read_tensors(store: LocalStore, directory: str, entry: FileEntry) -> dict[str, Array]:
    file = CheckedFile(store, directory, entry)
    file.check_size()
    return dict(read_to_places(file, new_places).tensors)


def same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensor_dicts)
@example({name: array(name, (3, 2), 1) for name in NAMES})
def test_tensors_of_every_type_are_read_back_bit_for_bit_and_by_the_safetensors_library(
    store: LocalStore, tensors: dict[str, Array]
) -> None:
    store.delete_tree("a")
    entry = write_tensors(store, "a", "t.safetensors", tensors)
    path = store.path / "a/t.safetensors"
    data = path.read_bytes()
    assert entry == FileEntry("t.safetensors", len(data), google_crc32c.value(data))
    read_back = read_tensors(store, "a", entry)
    assert read_back.keys() == tensors.keys()
    assert all(same(read_back[key], tensors[key]) for key in tensors)
    assert all(tensor.flags.writeable for tensor in read_back.values())
    verify_file(store, "a", entry)
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(tensors)
        for key, tensor in tensors.items():
            assert file.get_slice(key).get_shape() == list(tensor.shape)
            if tensor.dtype.name in PLAIN_NUMPY:
                assert same(file.get_tensor(key), tensor)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a[::2, ::-1], lambda a: a.astype(">f4")])
def test_the_layout_in_memory_does_not_matter(store: LocalStore, make: Any) -> None:
    tensor = make(np.arange(20, dtype=np.float32).reshape(4, 5))
    read_back = read_tensors(store, "a", write_tensors(store, "a", "t", {"x": tensor}))["x"]
    assert np.array_equal(read_back, tensor)
    assert read_back.dtype == np.dtype("float32")


def test_writing_and_reading_take_no_second_copy_of_a_tensor(store: LocalStore) -> None:
    tensor = np.zeros(64 << 20, np.uint8)
    with little_memory_taken(8 << 20):
        entry = write_tensors(store, "a", "t", {"x": tensor})
    with little_memory_taken((64 + 8) << 20):
        read_tensors(store, "a", entry)


@pytest.mark.parametrize("tensor", [np.zeros(2, np.complex128), np.array(["a"]), np.array([None])])
def test_a_type_that_cannot_be_stored_is_refused_and_nothing_written(
    store: LocalStore, tensor: Array
) -> None:
    with pytest.raises(ValueError, match=r"Expected an element type out of .* Received: "):
        write_tensors(store, "a", "t", {"x": tensor})
    with pytest.raises(ValueError, match="__metadata__"):
        write_tensors(store, "a", "t", {"__metadata__": np.zeros(2)})
    assert snapshot(store.path) == {}


def assert_noticed(store: LocalStore, entry: FileEntry, why: str) -> None:
    for check in (read_tensors, verify_file):
        with pytest.raises(CorruptCheckpoint, match=why):
            check(store, "a", entry)


def test_every_changed_byte_and_every_cut_is_noticed(store: LocalStore) -> None:
    entry = write_tensors(store, "a", "t", {"x": array("bfloat16", (3, 2), 1), "y": np.array([True, False])})
    path = store.path / "a/t"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert_noticed(store, entry, "a/t")
        path.write_bytes(data[:position])
        assert_noticed(store, entry, f"{position} bytes instead of {len(data)}")
    path.write_bytes(data + b"\0")
    assert_noticed(store, entry, "a/t")
    path.unlink()
    assert_noticed(store, entry, "no file of that name")


TEXT = b'{"a":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}}'
HOSTILE = {
    "no length": b"\1\0\0",
    "length beyond the file": (10**6).to_bytes(8, "little") + b"{}",
    "length beyond memory": (2**63).to_bytes(8, "little") + b"{}",
    "no header": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "bad boolean": len(TEXT).to_bytes(8, "little") + TEXT + b"\1\2\3\0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_although_its_sum_is_right(store: LocalStore, data: bytes) -> None:
    store.create("a/t", data)
    with little_memory_taken(32 << 20), pytest.raises(CorruptCheckpoint, match=r"Expected a/t .* Received: "):
        read_tensors(store, "a", FileEntry("t", len(data), google_crc32c.value(data)))


def test_metadata_of_other_writers_is_accepted(store: LocalStore) -> None:
    text = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    data = len(text).to_bytes(8, "little") + text + b"\1\2\3\0"
    store.create("a/t", data)
    read_back = read_tensors(store, "a", FileEntry("t", len(data), google_crc32c.value(data)))
    assert {key: tensor.tolist() for key, tensor in read_back.items()} == {"a": [1, 2, 3, 0]}
