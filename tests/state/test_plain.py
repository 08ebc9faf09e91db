"""Plain data and the states of random generators come back from JSON and arrays to the last bit."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_preempt.state import plain, randomness

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


def bits(value: Any) -> Any:
    """Types and bits, all the way down, and the order of keys too."""
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, (list, tuple)):
        return type(value), [bits(item) for item in value]
    if isinstance(value, dict):
        return [(bits(key), bits(item)) for key, item in value.items()]
    return type(value), value


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
def test_every_bit_of_plain_data_comes_back_and_encoding_changes_none(value: Any) -> None:
    before = bits(value)
    assert bits(through_json(value)) == before
    assert bits(value) == before


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
    with pytest.raises(TypeError, match=r"Expected plain data at state/callback/1.*Received"):
        plain.encode({"callback": [1, value]}, {}, "state")


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


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def captured() -> tuple[Any, dict[str, np.ndarray]]:
    """The state as it comes out of a file: JSON, and arrays with other owners."""
    arrays: dict[str, np.ndarray] = {}
    state = json.loads(json.dumps(randomness.capture(arrays)))
    return state, {
        name: np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape)
        for name, value in arrays.items()
    }


def draw() -> list[Any]:
    return [
        *[random.random() for _ in range(700)],  # more than the generator keeps ready
        random.gauss(0, 1),
        random.getrandbits(100),
        random.sample(range(1000), 5),
        *np.random.random(700).tolist(),
        float(np.random.randn()),
        np.random.permutation(20).tolist(),
        np.random.bytes(5),
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), drawn=st.integers(0, 5))
def test_both_generators_go_on_where_they_were(seed: int, drawn: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    for _ in range(drawn):
        random.gauss(0, 1)  # every other one is kept for later
        np.random.randn()
    state, arrays = captured()
    expected = draw()
    random.seed(0)
    np.random.seed(0)
    randomness.restore(state, arrays)
    assert draw() == expected


def test_looking_at_the_state_draws_nothing_and_it_is_a_few_kilobytes() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = draw()
    random.seed(3)
    np.random.seed(3)
    state, arrays = captured()
    assert draw() == expected
    assert len(json.dumps(state)) + sum(array.nbytes for array in arrays.values()) < 10_000


@pytest.mark.parametrize("part", ["python", "numpy"])
@pytest.mark.parametrize("value", [None, 3, [], [1, 2, 3], {"$": "tuple", "items": [3, [1], None]}], ids=str)
def test_what_is_no_such_state_is_refused_with_a_value_error(part: str, value: Any) -> None:
    state, arrays = captured()
    for wrong in ({**state, part: value}, {each: state[each] for each in state if each != part}):
        with pytest.raises(ValueError, match=r"."):
            randomness.restore(wrong, arrays)
