from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from keras_preempt.cli.compare import (
    NAMES,
    SavedState,
    combined,
    compare_json,
    compare_states,
    compare_tensors,
)

MATRIX = np.arange(6.0).reshape(2, 3)


def saved(*members) -> SavedState:
    """What some workers have saved; each is its mirrored tensors, its own, and its JSON state."""
    tensors = dict(members[0][0]) if members else {}
    for number, (_, local, _) in enumerate(members):
        tensors.update({f"w{number}: {name}": value for name, value in local.items()})
    return SavedState(tensors, {f"w{number}": state for number, (_, _, state) in enumerate(members)})


def different(one, other):
    return [each for each in compare_tensors(one, other, NAMES) if each.difference is not None]


def state(**changes):
    fields = {
        "mirrored": {
            "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
            "seed": np.array([1, 2], np.uint32),
        },
        "local": {"metric": np.float32(0.5).reshape(())},
        "state": {"callbacks": {"History": {"loss": [0.5, 0.25]}}, "timing": {"train": 1.0}},
    }
    return tuple({**fields, **changes}.values())


def test_equal_states_are_identical_and_counted_once_for_mirrored_tensors():
    comparison = compare_states(saved(state(), state()), saved(state(), state()))
    assert comparison.identical
    assert (comparison.members, comparison.tensors) == (2, 4)
    assert comparison.compared_bytes == 24 + 8 + 2 * 4


def test_nothing_compared_and_a_missing_member_are_not_identical():
    assert not compare_states(saved(), saved()).identical
    assert not compare_states(saved(state(), state()), saved(state())).identical


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_]
)
def test_one_changed_value_of_any_type_is_found(dtype):
    one = np.ones((3, 2), dtype)
    other = one.copy()
    other[2, 1] = 0
    (difference,) = different({"x": one}, {"x": other})
    assert (difference.name, difference.largest) == ("x", 1.0)
    assert "1 of 6 values" in str(difference)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), True),
        (np.array(0.0), np.array(-0.0), False),
        (np.zeros((0, 3)), np.zeros((0, 3)), True),
        (np.array(b"ab"), np.array(b"ab"), True),
        (np.array(b"ab"), np.array(b"ac"), False),
        (MATRIX, np.asfortranarray(MATRIX), True),
    ],
)
def test_tensors_are_equal_if_their_bits_are_in_any_layout(one, other, equal):
    assert (not different({"x": one}, {"x": other})) == equal


def test_a_difference_beside_nan_and_infinity_is_measured():
    one, other = np.array([np.nan, np.inf, 1.0]), np.array([np.nan, -np.inf, 3.0])
    (difference,) = different({"x": one}, {"x": other})
    assert difference.largest == 2.0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"x": np.zeros(2, np.float64)}, "types float32 and float64"),
        ({"x": np.zeros(3, np.float32)}, "shapes"),
        ({}, "only in the undisturbed run"),
        ({"x": np.zeros(2, np.float32), "y": np.zeros(1)}, "only in the preempted run"),
    ],
)
def test_a_tensor_of_another_shape_or_type_is_named(other, reason):
    (difference,) = different({"x": np.zeros(2, np.float32)}, other)
    assert reason in str(difference)


def test_a_member_that_differs_is_named():
    changed = state(local={"metric": np.float32(0.75).reshape(())})
    (difference,) = compare_states(saved(state(), state()), saved(state(), changed)).tensor_differences
    assert str(difference) == "w1: metric: 1 of 1 values, by at most 0.25"


def test_a_history_that_differs_is_distinguished_from_other_state():
    other = state(state={"callbacks": {"History": {"loss": [0.5, 0.26]}}})
    comparison = compare_states(saved(state()), saved(other))
    assert not comparison.identical
    assert not comparison.history_equal
    assert comparison.state_differences == ["w0/callbacks/History/loss/1: 0.25 and 0.26"]
    elsewhere = compare_states(saved(state(state={"wait": 1})), saved(state(state={"wait": 2})))
    assert elsewhere.history_equal


@pytest.mark.parametrize(
    ("left", "right", "place"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "/a/1/b"),
        ({"a": 1}, {"a": 1.0}, "/a"),
        ({"a": True}, {"a": 1}, "/a"),
        ({"a": [1, 2]}, {"a": [1]}, "/a"),
        ({"a": None}, {}, "/a"),
        ({"a": math.nan}, {"a": 1.0}, "/a"),
    ],
)
def test_places_in_the_state_are_named(left, right, place):
    (line,) = compare_json(left, right, NAMES)
    assert line.startswith(place[1:] + ":")


def test_equal_nan_and_volatile_keys_are_no_difference():
    assert compare_json({"a": math.nan, "timing": {"x": 1}}, {"a": math.nan, "timing": {"x": 2}}, NAMES) == []


def test_the_position_of_an_iterator_decides_and_its_bytes_do_not():
    def with_input(byte: int, batches: int, way: str):
        tensor = np.array([1, byte], np.uint8)
        position = {"position": {"batches": batches, "iterators": 2}, "way": way}
        return state(local={"input/state": tensor, "metric": np.ones(1)}, state={"input": position})

    aside = compare_states(saved(with_input(10, 5, "state")), saved(with_input(12, 5, "new")))
    assert aside.identical
    assert [line.partition(": iterator internals")[0] for line in aside.set_aside] == [
        "w0: input/state: 1 of 2 values, by at most 2",
        "w0/input/way: 'state' and 'new'",
    ]
    moved = compare_states(saved(with_input(10, 5, "state")), saved(with_input(10, 6, "state")))
    assert moved.state_differences == ["w0/input/position/batches: 5 and 6"]


def test_what_is_taken_by_the_clock_of_an_iterator_does_not_decide():
    def with_snapshot(drawn, batches):
        local = {"input/snapshot": np.full(drawn, 7, np.uint8), "input/grain/x": np.arange(batches)}
        state = {"input": {"snapshot": {"drawn": drawn}, "grain": {"batches": batches}, "way": "replay"}}
        return ({}, {"seed": np.ones(2), **local}, state)

    without = ({}, {"seed": np.ones(2)}, {"input": {"way": "replay"}})
    for other in (with_snapshot(9, 4), without):
        aside = compare_states(saved(with_snapshot(5, 3)), saved(other))
        assert aside.identical
        assert len(aside.set_aside) == 4
    assert not compare_states(saved(without), saved(({}, {"seed": np.zeros(2)}, without[2]))).identical


def test_how_far_shuffles_were_ahead_when_a_validation_began_does_not_decide():
    def validated(ahead):
        return ({}, {"seed": np.ones(2)}, {"validated": {"made_at": [[ahead, 2]], "looked": True}})

    aside = compare_states(saved(validated(44)), saved(validated(46)))
    assert aside.identical
    assert len(aside.set_aside) == 1


def test_comparisons_of_fits_are_joined_with_their_names():
    changed = state(local={"metric": np.float32(0.75).reshape(())}, state={"wait": 1})
    one, other = (
        compare_states(saved(state()), saved(state())),
        compare_states(saved(state(state={"wait": 2})), saved(changed)),
    )
    both = combined([("fit 1 (a): ", one), ("fit 2 (b): ", other)])
    assert (both.tensors, both.identical) == (one.tensors + other.tensors, False)
    assert [each.name for each in both.tensor_differences] == ["fit 2 (b): w0: metric"]
    assert both.state_differences == ["fit 2 (b): w0/wait: 2 and 1"]
