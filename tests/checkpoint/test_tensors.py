from __future__ import annotations

import json
import tracemalloc
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from keras_preempt.checkpoint.errors import AlreadyExists, CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.partition import NAMES, dtype_of, elements
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array, parse_header, read_tensors, verify_file, write_tensors
from tests.checkpoint.builders import snapshot

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


def same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tensor_dicts)
def test_tensors_of_every_type_are_read_back_bit_for_bit(
    store: LocalStore, tensors: dict[str, Array]
) -> None:
    store.delete_tree("a")
    entry = write_tensors(store, "a", "t.safetensors", tensors)
    data = (store.path / "a/t.safetensors").read_bytes()
    assert entry == FileEntry("t.safetensors", len(data), google_crc32c.value(data))
    read_back = read_tensors(store, "a", entry)
    assert read_back.keys() == tensors.keys()
    assert all(same(read_back[key], tensors[key]) for key in tensors)
    assert all(tensor.flags.writeable for tensor in read_back.values())
    verify_file(store, "a", entry)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tensor_dicts)
def test_the_safetensors_library_reads_what_was_written(store: LocalStore, tensors: dict[str, Array]) -> None:
    store.delete_tree("a")
    write_tensors(store, "a", "t.safetensors", tensors)
    with safe_open(store.path / "a/t.safetensors", framework="np") as file:
        assert set(file.keys()) == set(tensors)
        for key, tensor in tensors.items():
            assert file.get_slice(key).get_shape() == list(tensor.shape)
            if tensor.dtype.name in PLAIN_NUMPY:
                assert same(file.get_tensor(key), tensor)


def test_every_element_type_is_known_to_the_safetensors_library(store: LocalStore) -> None:
    tensors = {name: array(name, (3, 2), 1) for name in NAMES}
    write_tensors(store, "a", "t.safetensors", tensors)
    with safe_open(store.path / "a/t.safetensors", framework="np") as file:
        assert set(file.keys()) == set(NAMES)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a[::2, ::-1], lambda a: a.astype(">f4")])
def test_the_layout_in_memory_does_not_matter(store: LocalStore, make: Any) -> None:
    tensor = make(np.arange(20, dtype=np.float32).reshape(4, 5))
    read_back = read_tensors(store, "a", write_tensors(store, "a", "t", {"x": tensor}))["x"]
    assert np.array_equal(read_back, tensor)
    assert read_back.dtype == np.dtype("float32")


def test_writing_and_reading_take_no_second_copy_of_a_tensor(store: LocalStore) -> None:
    tensor = np.zeros(64 << 20, np.uint8)
    tracemalloc.start()
    try:
        entry = write_tensors(store, "a", "t", {"x": tensor})
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 8 << 20
        tracemalloc.reset_peak()
        read_tensors(store, "a", entry)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < (64 + 8) << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tensor", [np.zeros(2, np.complex128), np.array(["a"]), np.array([None])])
def test_a_type_that_cannot_be_stored_is_refused_and_nothing_written(
    store: LocalStore, tensor: Array
) -> None:
    with pytest.raises(ValueError, match=r"Expected an element type out of .* Received: "):
        write_tensors(store, "a", "t", {"x": tensor})
    with pytest.raises(ValueError, match="__metadata__"):
        write_tensors(store, "a", "t", {"__metadata__": np.zeros(2)})
    assert snapshot(store.path) == {}


def test_a_file_of_tensors_is_never_overwritten(store: LocalStore) -> None:
    entry = write_tensors(store, "a", "t", {"x": np.zeros(3)})
    with pytest.raises(AlreadyExists):
        write_tensors(store, "a", "t", {"x": np.ones(3)})
    assert read_tensors(store, "a", entry)["x"].tolist() == [0, 0, 0]


def test_every_changed_byte_and_every_cut_is_noticed(store: LocalStore) -> None:
    entry = write_tensors(store, "a", "t", {"x": array("bfloat16", (3, 2), 1), "y": np.array([True, False])})
    path = store.path / "a/t"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        for check in (read_tensors, verify_file):
            with pytest.raises(CorruptCheckpoint, match="a/t"):
                check(store, "a", entry)
        path.write_bytes(data[:position])
        for check in (read_tensors, verify_file):
            with pytest.raises(CorruptCheckpoint, match=f"{position} bytes instead of {len(data)}"):
                check(store, "a", entry)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptCheckpoint):
        read_tensors(store, "a", entry)
    path.unlink()
    for check in (read_tensors, verify_file):
        with pytest.raises(CorruptCheckpoint, match="no file of that name"):
            check(store, "a", entry)


def test_a_file_of_another_size_is_refused_before_memory_is_taken(store: LocalStore) -> None:
    store.create("a/t", b"")
    with open(store.path / "a/t", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptCheckpoint, match="instead of 100"):
        read_tensors(store, "a", FileEntry("t", 100, 0))


def header(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def tensor_field(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


HOSTILE = {
    "no length": b"\1\0\0",
    "length beyond the file": (10**6).to_bytes(8, "little") + b"{}",
    "length beyond memory": (2**63).to_bytes(8, "little") + b"{}",
    "no JSON": b"nonsense",
    "no UTF-8": b'{"\xff":1}',
    "no object": b"[]",
    "too deep": b"[" * 100_000,
    "twice": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
    b'"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
    "no type": header(a={"shape": [4], "data_offsets": [0, 4]}),
    "extra field": header(a=tensor_field(code="print()")),
    "unknown type": header(a=tensor_field("PICKLE")),
    "type of no string": header(a=tensor_field(["U8"])),
    "negative dimension": header(a=tensor_field(shape=[-4])),
    "two negative dimensions": header(a=tensor_field(shape=[-2, -2])),
    "float dimension": header(a=tensor_field(shape=[4.0])),
    "boolean dimension": header(a=tensor_field(shape=[4, True])),
    "shape of no list": header(a=tensor_field(shape="4")),
    "overflowing shape": header(a=tensor_field(shape=[2**32, 2**32, 0, 4], offsets=[0, 0])),
    "overflow to four": header(a=tensor_field(shape=[2**62, 4, 4])),
    "shape and bytes differ": header(a=tensor_field(shape=[3])),
    "offsets reversed": header(a=tensor_field(offsets=[4, 0])),
    "three offsets": header(a=tensor_field(offsets=[0, 4, 4])),
    "beyond the end": header(a=tensor_field(shape=[5], offsets=[0, 5])),
    "before the start": header(a=tensor_field(offsets=[-4, 0])),
    "overlap": header(a=tensor_field(), b=tensor_field(shape=[2], offsets=[2, 4])),
    "same bytes": header(a=tensor_field(), b=tensor_field()),
    "gap": header(a=tensor_field(shape=[1], offsets=[0, 1]), b=tensor_field(shape=[1], offsets=[3, 4])),
    "unused bytes": header(a=tensor_field(shape=[1], offsets=[0, 1])),
    "bad boolean": header(a=tensor_field("BOOL")),
    "too many dimensions": header(a=tensor_field(shape=[1] * 40 + [4])),
}


@pytest.mark.parametrize("why", HOSTILE)
def test_a_hostile_header_is_refused_although_its_sum_is_right(store: LocalStore, why: str) -> None:
    text = HOSTILE[why]
    data = text if "length" in why else len(text).to_bytes(8, "little") + text + b"\1\2\3\0"
    store.create("a/t", data)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match=r"Expected a/t .* Received: "):
            read_tensors(store, "a", FileEntry("t", len(data), google_crc32c.value(data)))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("why", [why for why in HOSTILE if "length" not in why and why != "bad boolean"])
def test_a_hostile_header_is_refused_before_memory_is_taken_for_its_tensors(why: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"Expected a/t .* Received: "):
        parse_header(HOSTILE[why], 4, "a/t")


def test_metadata_of_other_writers_is_accepted(store: LocalStore) -> None:
    text = header(__metadata__={"format": "pt"}, a=tensor_field())
    data = len(text).to_bytes(8, "little") + text + b"\1\2\3\0"
    store.create("a/t", data)
    read_back = read_tensors(store, "a", FileEntry("t", len(data), google_crc32c.value(data)))
    assert {key: tensor.tolist() for key, tensor in read_back.items()} == {"a": [1, 2, 3, 0]}
