from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.values import Box, Piece, Value, check_cover, size_of
from keras_preempt.checkpoint.worker_values import by_replica

Run = tuple[tuple[int, int], ...]


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Run]]:
    """A shape, and runs that make it up: cut again and again, each time anywhere along any dimension."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    runs: list[Run] = [tuple((0, size) for size in shape)]
    for _ in range(draw(st.integers(0, 6))):
        number = draw(st.integers(0, len(runs) - 1))
        long = [n for n, (start, stop) in enumerate(runs[number]) if stop - start > 1]
        if long:
            n = draw(st.sampled_from(long))
            run = runs.pop(number)
            at = draw(st.integers(run[n][0] + 1, run[n][1] - 1))
            runs += [(*run[:n], part, *run[n + 1 :]) for part in ((run[n][0], at), (at, run[n][1]))]
    return shape, draw(st.permutations(runs))


def any_box(data: st.DataObject, shape: tuple[int, ...]) -> Box:
    ends = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return a_box(shape, tuple((start, stop) for start, stop in ends))


def a_box(shape: tuple[int, ...], run: Run, tensor: str = "kernel", dtype: str = "float32") -> Box:
    return Box(tensor, dtype, shape, tuple(start for start, _ in run), tuple(stop for _, stop in run))


@given(tilings(), st.data())
def test_boxes_are_accepted_exactly_if_every_element_is_in_one_of_them(
    tiling: tuple[tuple[int, ...], list[Run]], data: st.DataObject
) -> None:
    """As they are, or moved, stretched, dropped and repeated at will, against counting element by element."""
    shape, runs = tiling
    boxes = [a_box(shape, run) for run in runs]
    for _ in range(data.draw(st.integers(0, 3))):
        number = data.draw(st.integers(0, len(boxes) - 1))
        how = data.draw(st.sampled_from(["drop", "repeat", "other"]))
        if how == "drop" and len(boxes) > 1:
            boxes.pop(number)
        elif how == "repeat":
            boxes.append(boxes[number])
        else:
            boxes[number] = any_box(data, shape)
    count = np.zeros(shape, np.int64)  # How many boxes each element is in.
    for box in boxes:
        box.of(count)[...] += 1
    hollow = any(
        start == stop and size
        for box in boxes
        for start, stop, size in zip(box.start, box.stop, shape, strict=True)
    )
    if count.size and (count == 1).all() and not hollow:
        check_cover(boxes)
        assert size_of(boxes) == 4 * count.size
        assert len({box.key for box in boxes}) == len(boxes)
    elif count.size:
        with pytest.raises(ValueError, match="'kernel' has ") as refused:
            check_cover(boxes)
        if "element" in str(refused.value):
            where = tuple(map(int, str(refused.value).rpartition("[")[2][:-1].split(","))) if shape else ()
            assert (count[where] > 1) == ("overlap" in str(refused.value))
            assert count[where] != 1


WHOLE = Box("kernel", "float32", (4, 6), (0, 0), (4, 6))
LEFT, RIGHT = replace(WHOLE, stop=(4, 3)), replace(WHOLE, start=(0, 3))


@pytest.mark.parametrize(
    ("boxes", "why"),
    [
        ([LEFT], r"a gap at element \[0, 3\]"),
        ([LEFT, RIGHT, LEFT], r"an overlap at element \[0, 0\]"),
        ([LEFT, replace(RIGHT, start=(0, 2))], r"an overlap at element \[0, 2\]"),
        ([LEFT, replace(RIGHT, start=(1, 3))], r"a gap at element \[0, 3\]"),
        ([LEFT, RIGHT, replace(LEFT, stop=(0, 3))], "an empty piece"),
        ([LEFT, replace(RIGHT, dtype="int32")], "different shapes or element types"),
        ([LEFT, replace(RIGHT, shape=(4, 7))], "different shapes or element types"),
    ],
)
def test_boxes_that_do_not_make_up_a_tensor_are_refused_and_say_where(boxes: list[Box], why: str) -> None:
    with pytest.raises(ValueError, match=rf"^'kernel' .*{why}"):
        check_cover(boxes)


def test_boxes_have_to_be_those_of_the_model() -> None:
    pieces = tuple(Piece(box.start, box.stop, (0,)) for box in (LEFT, RIGHT))
    spec = Value("kernel", "float32", (4, 6), pieces)
    check_cover([WHOLE], [spec])
    for specs, why in (
        ([], "not a tensor of this model"),
        ([spec, replace(spec, name="bias")], "'bias' is missing"),
        ([replace(spec, dtype="int32")], "another shape or element type"),
    ):
        with pytest.raises(ValueError, match=why):
            check_cover([WHOLE], specs)


@pytest.mark.parametrize(
    ("start", "stop"),
    [((0,), (4,)), ((0, 0), (4, 7)), ((-1, 0), (4, 6)), ((2, 0), (1, 6)), ((0, 0, 0), (4, 6, 1)), ((), ())],
)
def test_a_box_lies_in_its_tensor(start: tuple[int, ...], stop: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Expected a piece of 'kernel' .* Received: "):
        replace(WHOLE, start=start, stop=stop)


def test_boxes_of_different_tensors_have_different_keys_whatever_the_tensors_are_called() -> None:
    names = ["a", "a[0:1]", "a[0:1,0:1]", "a[", "__metadata__", "a[]"]
    shapes: list[tuple[int, ...]] = [(), (1,), (1, 1)]
    boxes = [
        Box(name, "int8", shape, start, shape)
        for name, shape in itertools.product(names, shapes)
        for start in itertools.product(*(range(size + 1) for size in shape))
    ]
    assert len({box.key for box in boxes}) == len(boxes)
    assert "__metadata__" not in {box.key for box in boxes}


@given(tilings(), st.data())
def test_what_two_boxes_have_in_common_is_found_in_both(
    tiling: tuple[tuple[int, ...], list[Run]], data: st.DataObject
) -> None:
    shape, runs = tiling
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    one = a_box(shape, data.draw(st.sampled_from(runs)))
    other = any_box(data, shape)
    common = one.intersection(other)
    shared = np.intersect1d(one.of(whole), other.of(whole))
    assert (common is not None) == (other.intersection(one) is not None) == bool(shared.size)
    if common is not None:
        for box in (one, other):
            assert np.array_equal(common.within(box, box.of(whole)), common.of(whole))
        assert np.array_equal(np.sort(common.of(whole), axis=None), shared)


def test_a_tensor_that_claims_to_be_divided_along_dozens_of_dimensions_is_refused_at_once() -> None:
    shape = (2,) * 32
    boxes = [a_box(shape, ((0, 1),) * n + ((1, 2),) + ((0, 2),) * (31 - n)) for n in range(32)]
    with pytest.raises(ValueError, match="along 32 dimensions"):
        check_cover(boxes)


def test_a_piece_never_shares_its_key_with_another_tensor() -> None:
    assert Value("a", "int8", (9,)).run(0, 5).key == "a[0:5]"
    assert Value("a[0:5]", "int8", (5,)).run(0, 5).key == "a[0:5][0:5]"
    assert Value("__metadata__", "int8", (5,)).run(0, 5).key == "__metadata__[0:5]"
    assert Value("a", "int8", (3, 3)).run(0, 9).key == "a"


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("a", "complex128", ()),
        ("a", "object", ()),
        ("a", ["float32"], ()),
        ("a", "float32", (-1,)),
        ("a", "float32", (0, 2**61)),
        ("a", "float32", (2**61, 2**61)),
        ("a", "float32", (1,) * 33),
        ("", "float32", ()),
    ],
)
def test_an_impossible_tensor_is_refused(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Expected .* Received: "):
        Value(name, dtype, shape)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7), (7, 7)])
def test_a_run_outside_its_tensor_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"Expected a piece of 'a' with the dimensions \[6\]"):
        Value("a", "float32", (2, 3)).run(start, stop)


def test_replicas_are_in_the_order_of_their_numbers_and_no_name_is_too_long_to_be_read() -> None:
    numbered = {f"model/mean@{n}": np.asarray(n) for n in (10, 0, 2)}
    beside = {"callbacks/own": np.zeros(1), "callbacks/best@" + "9" * 5000: np.zeros(1)}
    found = by_replica({**numbered, **beside})
    assert {name: [int(value) for value in values] for name, values in found.items()} == {
        "model/mean": [0, 2, 10]
    }
