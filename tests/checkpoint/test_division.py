from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.checkpoint.division import SMALLEST_CUT, PiecesLost, divide
from keras_preempt.checkpoint.dtypes import NAMES
from keras_preempt.checkpoint.values import Piece, Value, check_cover, elements, size_of
from tests.checkpoint.test_values import a_box, tilings

MEMBERS = 5

dimensions = st.one_of(st.integers(0, 5), st.sampled_from([64, 1000, 1024, 4097]))
shapes = st.lists(dimensions, max_size=3).map(tuple)
spec_lists = st.lists(st.tuples(st.sampled_from(NAMES), shapes), max_size=12).map(
    lambda pairs: [Value(f"t{number}", dtype, shape) for number, (dtype, shape) in enumerate(pairs)]
)


@given(spec_lists, st.integers(1, 9))
def test_shares_make_up_every_tensor_once_are_even_and_cut_no_small_one(
    specs: list[Value], writers: int
) -> None:
    shares = list(divide(specs, range(writers)).values())
    assert len(shares) == writers
    row = [piece for share in shares for piece in share]
    check_cover(row, specs)
    for spec in specs:  # the same, without the function under test: each begins where the one before ends
        pieces = sorted((piece.start[0], piece.stop[0]) for piece in row if piece.tensor == spec.name)
        starts, stops = zip(*pieces, strict=True)
        assert (*starts, elements(spec.shape)) == (0, *stops)
    numbers = [int(piece.tensor[1:]) for piece in row]
    assert numbers == sorted(numbers)
    even = sum(spec.nbytes for spec in specs) / writers
    for share in shares:
        # Half a small tensor too much or too little at either end.
        assert abs(sum(piece.nbytes for piece in share) - even) <= SMALLEST_CUT + 32
        for piece in share:
            assert (
                piece == piece.whole or Value(piece.tensor, piece.dtype, piece.shape).nbytes >= SMALLEST_CUT
            )


@given(spec_lists, st.integers(1, 9), st.integers(0, 4))
def test_shares_that_are_worth_it_are_within_ten_percent(
    specs: list[Value], writers: int, large: int
) -> None:
    table = Value("table", "bfloat16", (writers * (10 * SMALLEST_CUT >> large), 1 << large))
    specs = [*specs, table, *(Value(f"{spec.name}/slot", spec.dtype, spec.shape) for spec in specs)]
    even = sum(spec.nbytes for spec in specs) / writers
    for share in divide(specs, range(writers)).values():
        assert abs(sum(piece.nbytes for piece in share) - even) <= 0.1 * even


@given(
    spec_lists,
    st.integers(1, 4),
    st.sampled_from(["drop", "repeat", "shift", "foreign", "retype"]),
    st.data(),
)
def test_a_tiling_that_is_wrong_is_refused(specs: list[Value], writers: int, damage: str, data: Any) -> None:
    row = [piece for share in divide(specs, range(writers)).values() for piece in share]
    if not row:
        return
    index = data.draw(st.integers(0, len(row) - 1))
    piece = row[index]
    if damage == "drop":
        del row[index]
    elif damage == "repeat":
        row.append(piece)
    elif damage == "shift" and piece.nbytes:
        row[index] = replace(piece, stop=(piece.stop[0] - 1,))
    elif damage == "retype":
        row[index] = replace(piece, dtype="int8" if piece.dtype != "int8" else "uint8")
    else:
        row.append(Value("foreign", "int8", ()).run(0, 1))
    with pytest.raises(ValueError, match=re.escape(piece.tensor) + "|foreign"):
        check_cover(row, specs)


def test_equal_names_and_no_writers_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' twice"):
        divide([Value("a", "int8", ()), Value("a", "int8", (2,))], [0])
    with pytest.raises(ValueError, match="at least one writer"):
        divide([], [])


# -- Which worker writes which boxes ---------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Value], list[int]]:
    """Sharded tensors, and the workers that are not under notice."""
    specs = []
    for number in range(draw(st.integers(1, 4))):
        shape, runs = draw(tilings())
        holders = st.sets(st.integers(0, MEMBERS - 1), min_size=1).map(lambda found: tuple(sorted(found)))
        pieces = tuple(
            Piece(box.start, box.stop, draw(holders)) for box in (a_box(shape, run) for run in runs)
        )
        specs.append(Value(f"t{number}", "float32", shape, pieces))
    return specs, sorted(draw(st.sets(st.integers(0, MEMBERS - 1), min_size=1)))


@settings(max_examples=50)
@given(plans())
def test_each_piece_is_written_once_by_a_holder_not_under_notice_if_there_is_one_and_shares_are_even(
    plan: tuple[list[Value], list[int]],
) -> None:
    specs, writers = plan
    assigned = divide(specs, writers)
    check_cover((box for boxes in assigned.values() for box in boxes), specs)
    holders = {
        spec.box(piece.start, piece.stop): set(piece.holders) for spec in specs for piece in spec.pieces
    }
    load = {member: size_of(assigned.get(member, ())) for member in range(MEMBERS)}
    for member, boxes in assigned.items():
        assert boxes or member in writers
        for box in boxes:
            assert member in holders[box]
            assert member in writers or not holders[box].intersection(writers)
            # Nobody could hand a piece on and have the two more even.
            for other in (holders[box].intersection(writers) or holders[box]) - {member}:
                assert load[other] + box.nbytes >= load[member]
    assert divide(specs, writers[::-1]) == assigned


def test_a_piece_goes_to_a_worker_that_nothing_else_was_left_for() -> None:
    """Largest first gives worker 1 two of the three, since only the first of them could have gone to worker 3."""
    whole = [((0,), 4), ((0, 1, 3), 1), ((0, 1, 2), 1), ((0, 1, 2), 1)]
    specs = [
        Value(f"t{n}", "float32", (size,), (Piece((0,), (size,), holders),))
        for n, (holders, size) in enumerate(whole)
    ]
    assigned = divide(specs, range(4))
    assert {member: size_of(boxes) for member, boxes in assigned.items()} == {0: 16, 1: 4, 2: 4, 3: 4}


def test_a_piece_of_which_all_holders_are_gone_is_told_with_them() -> None:
    pieces = (Piece((0,), (2,), (0, 1)), Piece((2,), (4,), (2,)))
    spec = Value("kernel", "float32", (4,), pieces)
    assert divide([spec], [0, 1, 2], gone=[0]) == {
        0: [],
        1: [spec.box((0,), (2,))],
        2: [spec.box((2,), (4,))],
    }
    with pytest.raises(PiecesLost, match=r"1 that only worker 2 held, such as kernel\[2:4\]") as lost:
        divide([spec], [0, 1], gone=[2])
    assert lost.value.holders == (2,)


def _seconds(parts: int) -> float:
    """Processor time to assign and check that many pieces along each of three dimensions."""
    cuts = list(itertools.product(range(parts), repeat=3))
    pieces = tuple(Piece(cut, tuple(n + 1 for n in cut), (sum(cut) % 8, 7)) for cut in cuts)
    spec = Value("kernel", "float32", (parts,) * 3, pieces)
    began = time.process_time()
    assigned = divide([spec], range(8))
    check_cover((box for boxes in assigned.values() for box in boxes), [spec])
    return time.process_time() - began


def test_thousands_of_pieces_cost_no_more_than_in_proportion() -> None:
    few, many = (min(_seconds(parts) for _ in range(3)) for parts in (8, 16))
    assert many < 32 * few  # There are 8 times as many, and 64 times as many pairs.
