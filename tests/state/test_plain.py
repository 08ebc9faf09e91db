from __future__ import annotations

import json
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_preempt.state import plain

_SCALAR_TYPES = (
    np.bool_,
    np.int8,
    np.uint16,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
    np.complex64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
)


@st.composite
def numpy_scalars(draw: st.DrawFn) -> Any:
    """Any bits of any of the types: NaNs with payloads, negative zeros and infinities with them."""
    kind = np.dtype(draw(st.sampled_from(_SCALAR_TYPES)))
    if kind == np.bool_:
        return np.bool_(draw(st.booleans()))
    return np.frombuffer(draw(st.binary(min_size=kind.itemsize, max_size=kind.itemsize)), kind)[0]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    kind = np.dtype(draw(st.sampled_from(_SCALAR_TYPES[1:])))
    shape = draw(st.sampled_from([(), (0,), (3,), (2, 2)]))
    size = kind.itemsize * math.prod(shape)
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), kind).reshape(shape)


# Every 64 bits are a float: with sign and payload where they are not a number.
floats = st.binary(min_size=8, max_size=8).map(lambda bits: struct.unpack("<d", bits)[0])
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), floats, numpy_scalars(), arrays())
simple_keys = st.one_of(
    st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.sampled_from(["$", "a/b", "/"])
)
keys = st.one_of(simple_keys, st.tuples(simple_keys, simple_keys))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


def assert_same(actual: Any, expected: Any, where: str = "value") -> None:
    """Equal types and equal bits, all the way down."""
    assert type(actual) is type(expected), where
    if isinstance(expected, (np.ndarray, np.generic)):
        assert actual.dtype == expected.dtype, where
        assert actual.shape == expected.shape, where
        assert actual.tobytes() == expected.tobytes(), where
    elif isinstance(expected, float):
        assert struct.pack("<d", actual) == struct.pack("<d", expected), where
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    elif isinstance(expected, dict):
        assert_same(list(actual), list(expected), f"keys of {where}")  # the order too
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
    else:
        assert actual == expected, where


def through_json(value: Any) -> Any:
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(plain.encode(value, arrays, "state"), allow_nan=False)
    assert all(name.startswith("state") for name in arrays)
    return plain.decode(json.loads(text), arrays)


@settings(max_examples=300, deadline=None)
@given(values)
@example({"a/b": np.zeros(1), "a": {"b": np.ones(1)}})
@example({"$": "array", "name": "elsewhere"})
@example({1: "one", "1": "text", 2: None})
@example(((), [], {}, [()], {"$": {"$": ()}}))
@example(
    [0.1 + 0.2, 5e-324, -0.0, float("inf"), -float("inf"), struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]]
)
@example({(1, ("a", None)): np.float32(-0.0), np.int64(3): 1})
def test_every_bit_of_plain_data_comes_back(value: Any) -> None:
    assert_same(through_json(value), value)


def test_a_value_is_not_changed_by_encoding_it() -> None:
    value = {"history": {"loss": [0.5]}, "best": np.arange(3), 1: (2,)}
    before = repr(value)
    plain.encode(value, {}, "state")
    assert repr(value) == before


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"bytes",
        len,
        1j,
        np.complex128(1j),
        np.void(b"abc"),
        np.bytes_(b"x"),
        np.array([object()], object),
        [{"deep": (object(),)}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_come_back_is_refused_when_it_is_saved_not_when_it_is_restored(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Expected plain data at state.*Received"):
        plain.encode({"callback": value}, {}, "state")


def test_the_refusal_says_where() -> None:
    with pytest.raises(TypeError, match="at state/a/1"):
        plain.encode({"a": [1, object()]}, {}, "state")


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$", "dtype", "bytes", "name", "items", "value", "x"]),
            inner
            | st.sampled_from(["scalar", "float", "array", "tuple", "pairs", "object", "float32", "00"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(json_data)
@example({"$": "scalar", "dtype": "object", "bytes": "00" * 8})
@example({"$": "scalar", "dtype": "O", "bytes": "00" * 8})
@example({"$": "scalar", "dtype": "nonsense", "bytes": "00"})
@example({"$": "scalar", "dtype": "__loader__", "bytes": "00"})
@example({"$": "scalar", "dtype": "finfo", "bytes": "00" * 8})
@example({"$": "scalar", "dtype": "float32", "bytes": "0000"})
@example({"$": "scalar", "dtype": "float32", "bytes": "0000000000000000"})
@example({"$": "scalar", "dtype": "float32", "bytes": "not hexadecimal"})
@example({"$": "scalar"})
@example({"$": "pairs", "items": [[[1], 2]]})
@example({"$": "pairs", "items": ["ab", "c"]})
@example({"$": "array", "name": "missing"})
@example({"$": "array", "name": ["x"]})
@example({"$": "float", "value": "no number"})
@example({"$": "__import__", "value": "os"})
@example({"$": ["scalar"]})
def test_data_of_a_stranger_is_decoded_to_plain_data_or_refused_with_a_value_error(data: Any) -> None:
    try:
        value = plain.decode(data, {"x": np.zeros(2)})
    except ValueError:
        return
    assert_plain(value)


def assert_plain(value: Any) -> None:
    kinds = (type(None), bool, int, float, str, list, tuple, dict, np.ndarray, np.generic)
    assert isinstance(value, kinds), type(value)
    assert not isinstance(value, (np.ndarray, np.generic)) or value.dtype != object
    if isinstance(value, (list, tuple)):
        for item in value:
            assert_plain(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            assert_plain(key)
            assert_plain(item)


@pytest.mark.parametrize("tag", ["unknown", None, 3])
def test_a_tag_of_a_later_version_is_refused_by_name(tag: Any) -> None:
    with pytest.raises(ValueError, match=f"{tag}"):
        plain.decode({"$": tag}, {})
