from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.documents import FORMAT, decode, encode, read
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat
from keras_preempt.checkpoint.storage.local import LocalStore

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["$float", "$object", "inf"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["$float", "$object", "format"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_any_json_value_is_read_back_as_it_was(value: Any) -> None:
    body = {"format": FORMAT, "value": value}
    read_back = decode(encode(body), "file")
    assert read_back == body
    assert repr(read_back) == repr(body)  # also signs of zero, types of numbers and the order of keys


def test_a_nan_is_read_back_and_the_file_is_strict_json() -> None:
    data = encode({"format": FORMAT, "value": [math.nan, math.inf, np.float64(1.5)]})
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    nan, infinite, plain = decode(data, "file")["value"]
    assert math.isnan(nan)
    assert (infinite, plain) == (math.inf, 1.5)


def test_the_state_of_the_random_module_survives() -> None:
    body = {"format": FORMAT, "state": random.Random(1).getstate()}
    version, numbers, gauss = decode(encode(body), "file")["state"]
    twin = random.Random(2)
    twin.setstate((version, tuple(numbers), gauss))
    assert twin.random() == random.Random(1).random()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (np.float32(1), "a.b"),
        (np.zeros(2), "a.b"),
        ({1: 2}, "a.b"),
        ([0, {"c": b""}], r"a.b\[1\].c"),
        ({3}, "a.b"),
    ],
)
def test_a_value_that_json_lacks_is_refused_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(TypeError, match=rf"Expected .* at {where}\. Received: "):
        encode({"format": FORMAT, "a": {"b": value}})


def test_every_changed_bit_and_every_cut_is_noticed() -> None:
    data = encode({"format": FORMAT, "text": "é☃", "number": 1.5, "deep": {"list": [1, None, True]}})
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises((CorruptCheckpoint, UnsupportedFormat)):
                decode(bytes(changed), "file")
    for end in range(len(data)):
        with pytest.raises(CorruptCheckpoint):
            decode(data[:end], "file")
    with pytest.raises(CorruptCheckpoint):
        decode(data + b" ", "file")


def test_an_edited_document_is_refused() -> None:
    edited = json.loads(encode({"format": FORMAT, "step": 1}))
    edited["step"] = 2
    with pytest.raises(CorruptCheckpoint, match="changed after it was written"):
        decode(json.dumps(edited, separators=(",", ":")).encode() + b"\n", "file")


def test_a_newer_format_is_named_before_anything_else_is_checked() -> None:
    with pytest.raises(UnsupportedFormat, match=r"format version 7.*Install"):
        decode(b'{"format": 7, "everything": "else"}', "file")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format":0}',
        b'{"format":true}',
        b'{"format":"1"}',
        b'{"format":1,"a":NaN}',
        b'{"format":1,"a":{"$float":"1e5"}}',
        b'{"format":1,"a":{"$code":"print()"}}',
        b'{"format":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format":1,"a":' + b"9" * 10_000 + b"}",
        b"\xff\xfe{}",
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode(data, "file")


def test_a_document_too_large_to_be_one_is_not_read(store: LocalStore) -> None:
    with open(store.path / "MANIFEST.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptCheckpoint, match=str(1 << 40)):
        read(store, "MANIFEST.json")
