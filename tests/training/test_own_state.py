"""What one worker alone has, as a message to its neighbour."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_preempt.training.save.own_state import GIVEN_UP, packed, unpacked

values = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
    st.sampled_from(["float32", "int64", "bool", "uint8"]).flatmap(
        lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
    ),
    max_size=3,
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=3), values)
def test_it_arrives_as_it_was(state: dict[str, object], local: dict[str, np.ndarray]) -> None:
    found = unpacked(packed(state, local, 10**6))
    assert found is not None
    assert repr(found[0]) == repr(state)
    assert found[1].keys() == local.keys()
    for name, value in local.items():
        assert (found[1][name].dtype, found[1][name].shape) == (value.dtype, value.shape)
        assert found[1][name].tobytes() == value.tobytes()


def test_bfloat16_too() -> None:
    found = unpacked(packed({}, {"a": np.ones(3, ml_dtypes.bfloat16)}, 10**6))
    assert found is not None
    assert found[1]["a"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("most", [100, 1_000])
def test_what_is_too_large_is_not_told(most: int) -> None:
    assert packed({}, {"a": np.zeros(most, np.uint8)}, most) == GIVEN_UP
    assert unpacked(GIVEN_UP) is None
