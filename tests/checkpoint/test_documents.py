from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.documents import FORMAT, decode_document, encode_document
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat

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
    read_back = decode_document(encode_document(body), "file")
    assert read_back == body
    assert repr(read_back) == repr(body)  # also signs of zero, types of numbers and the order of keys


def test_a_nan_is_read_back_and_the_file_is_strict_json() -> None:
    data = encode_document({"format": FORMAT, "value": [math.nan, math.inf, np.float64(1.5)]})
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    nan, infinite, plain = decode_document(data, "file")["value"]
    assert math.isnan(nan)
    assert (infinite, plain) == (math.inf, 1.5)


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
        encode_document({"format": FORMAT, "a": {"b": value}})


def test_every_changed_bit_and_every_cut_is_noticed() -> None:
    data = encode_document({"format": FORMAT, "text": "é☃", "number": 1.5, "deep": {"list": [1, None, True]}})
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises((CorruptCheckpoint, UnsupportedFormat)):
                decode_document(bytes(changed), "file")
    for cut in (*(data[:end] for end in range(len(data))), data + b" "):
        with pytest.raises(CorruptCheckpoint):
            decode_document(cut, "file")


def test_a_newer_format_is_named_before_anything_else_is_checked() -> None:
    with pytest.raises(UnsupportedFormat, match=r"format version 7.*Install"):
        decode_document(b'{"format": 7, "everything": "else"}', "file")
