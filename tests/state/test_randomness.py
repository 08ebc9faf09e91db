from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.state import randomness


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


def test_looking_at_the_state_draws_nothing() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = draw()
    random.seed(3)
    np.random.seed(3)
    captured()
    assert draw() == expected


def test_the_state_is_a_few_kilobytes() -> None:
    state, arrays = captured()
    assert len(json.dumps(state)) + sum(array.nbytes for array in arrays.values()) < 10_000


@pytest.mark.parametrize("part", ["python", "numpy"])
@pytest.mark.parametrize("value", [None, 3, [], [1, 2, 3], {"$": "tuple", "items": [3, [1], None]}], ids=str)
def test_what_is_no_such_state_is_refused_with_a_value_error(part: str, value: Any) -> None:
    state, arrays = captured()
    with pytest.raises(ValueError, match=r"."):
        randomness.restore({**state, part: value}, arrays)


def test_a_missing_part_is_refused_with_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        randomness.restore({}, {})
