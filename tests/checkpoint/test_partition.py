from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.partition import (
    NAMES,
    SMALLEST_CUT,
    Slice,
    TensorSpec,
    check_tiling,
    elements,
    partition,
)

dimensions = st.one_of(st.integers(0, 5), st.sampled_from([64, 1000, 1024, 4097]))
shapes = st.lists(dimensions, max_size=3).map(tuple)
spec_lists = st.lists(st.tuples(st.sampled_from(NAMES), shapes), max_size=12).map(
    lambda pairs: [TensorSpec(f"t{number}", dtype, shape) for number, (dtype, shape) in enumerate(pairs)]
)


@given(spec_lists, st.integers(1, 9))
def test_shares_make_up_every_tensor_once_are_even_and_cut_no_small_one(
    specs: list[TensorSpec], writers: int
) -> None:
    shares = partition(specs, writers)
    assert len(shares) == writers
    row = [piece for share in shares for piece in share]
    check_tiling(row, specs)
    for spec in specs:  # the same, without the function under test: each begins where the one before ends
        pieces = sorted((piece.start, piece.stop) for piece in row if piece.tensor == spec.name)
        starts, stops = zip(*pieces, strict=True)
        assert (*starts, elements(spec.shape)) == (0, *stops)
    numbers = [int(piece.tensor[1:]) for piece in row]
    assert numbers == sorted(numbers)
    even = sum(spec.nbytes for spec in specs) / writers
    for share in shares:
        # Half a small tensor too much or too little at either end.
        assert abs(sum(piece.nbytes for piece in share) - even) <= SMALLEST_CUT + 32
        for piece in share:
            assert piece.whole or TensorSpec(piece.tensor, piece.dtype, piece.shape).nbytes >= SMALLEST_CUT


@given(spec_lists, st.integers(1, 9), st.integers(0, 4))
def test_shares_that_are_worth_it_are_within_ten_percent(
    specs: list[TensorSpec], writers: int, large: int
) -> None:
    table = TensorSpec("table", "bfloat16", (writers * (10 * SMALLEST_CUT >> large), 1 << large))
    specs = [*specs, table, *(TensorSpec(f"{spec.name}/slot", spec.dtype, spec.shape) for spec in specs)]
    even = sum(spec.nbytes for spec in specs) / writers
    for share in partition(specs, writers):
        assert abs(sum(piece.nbytes for piece in share) - even) <= 0.1 * even


@given(
    spec_lists,
    st.integers(1, 4),
    st.sampled_from(["drop", "repeat", "shift", "foreign", "retype"]),
    st.data(),
)
def test_a_tiling_that_is_wrong_is_refused(
    specs: list[TensorSpec], writers: int, damage: str, data: Any
) -> None:
    row = [piece for share in partition(specs, writers) for piece in share]
    if not row:
        return
    index = data.draw(st.integers(0, len(row) - 1))
    piece = row[index]
    if damage == "drop":
        del row[index]
    elif damage == "repeat":
        row.append(piece)
    elif damage == "shift" and piece.stop > piece.start:
        row[index] = replace(piece, stop=piece.stop - 1)
    elif damage == "retype":
        row[index] = replace(piece, dtype="int8" if piece.dtype != "int8" else "uint8")
    else:
        row.append(Slice("foreign", "int8", (), 0, 1))
    with pytest.raises(ValueError, match=re.escape(piece.tensor) + "|foreign"):
        check_tiling(row, specs)


def test_a_piece_never_shares_its_key_with_another_tensor() -> None:
    assert Slice("a", "int8", (9,), 0, 5).key == "a[0:5]"
    assert Slice("a[0:5]", "int8", (5,), 0, 5).key == "a[0:5][0:5]"
    assert Slice("__metadata__", "int8", (5,), 0, 5).key == "__metadata__[0:5]"
    assert Slice("a", "int8", (3, 3), 0, 9).key == "a"


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
        TensorSpec(name, dtype, shape)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7), (7, 7)])
def test_a_slice_outside_its_tensor_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="Expected a run of the 6 elements"):
        Slice("a", "float32", (2, 3), start, stop)


def test_equal_names_and_no_writers_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' twice"):
        partition([TensorSpec("a", "int8", ()), TensorSpec("a", "int8", (2,))], 1)
    with pytest.raises(ValueError, match="at least one writer"):
        partition([], 0)
