from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.checkpoint.boxes import (
    Box,
    Piece,
    PiecesLost,
    ShardedSpec,
    assign,
    check_boxes,
    size_of,
)

MEMBERS = 5
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
        count[box.index] += 1
    hollow = any(
        start == stop and size
        for box in boxes
        for start, stop, size in zip(box.start, box.stop, shape, strict=True)
    )
    if count.size and (count == 1).all() and not hollow:
        check_boxes(boxes)
        assert size_of(boxes) == 4 * count.size
        assert len({box.key for box in boxes}) == len(boxes)
    elif count.size:
        with pytest.raises(ValueError, match="'kernel' has ") as refused:
            check_boxes(boxes)
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
        check_boxes(boxes)


def test_boxes_have_to_be_those_of_the_model() -> None:
    pieces = tuple(Piece(box.start, box.stop, (0,)) for box in (LEFT, RIGHT))
    spec = ShardedSpec("kernel", "float32", (4, 6), pieces)
    check_boxes([WHOLE], [spec])
    for specs, why in (
        ([], "not a sharded tensor of this model"),
        ([spec, replace(spec, name="bias")], "'bias' is missing"),
        ([replace(spec, dtype="int32")], "another shape or element type"),
    ):
        with pytest.raises(ValueError, match=why):
            check_boxes([WHOLE], specs)


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
    shared = np.intersect1d(whole[one.index], whole[other.index])
    assert one.meets(other) == other.meets(one) == (common is not None) == bool(shared.size)
    if common is not None:
        for box in (one, other):
            assert np.array_equal(whole[box.index][common.within(box)], whole[common.index])
        assert np.array_equal(np.sort(whole[common.index], axis=None), shared)


# -- Which worker writes which boxes ---------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[ShardedSpec], list[int]]:
    """Sharded tensors, and the workers that are not under notice."""
    specs = []
    for number in range(draw(st.integers(1, 4))):
        shape, runs = draw(tilings())
        holders = st.sets(st.integers(0, MEMBERS - 1), min_size=1).map(lambda found: tuple(sorted(found)))
        pieces = tuple(
            Piece(box.start, box.stop, draw(holders)) for box in (a_box(shape, run) for run in runs)
        )
        specs.append(ShardedSpec(f"t{number}", "float32", shape, pieces))
    return specs, sorted(draw(st.sets(st.integers(0, MEMBERS - 1))))


@settings(max_examples=50)
@given(plans())
def test_each_piece_is_written_once_by_a_holder_not_under_notice_if_there_is_one_and_shares_are_even(
    plan: tuple[list[ShardedSpec], list[int]],
) -> None:
    specs, writers = plan
    assigned = assign(specs, writers)
    check_boxes((box for boxes in assigned.values() for box in boxes), specs)
    holders = {spec.box(piece): set(piece.holders) for spec in specs for piece in spec.pieces}
    load = {member: size_of(assigned.get(member, ())) for member in range(MEMBERS)}
    for member, boxes in assigned.items():
        assert boxes
        for box in boxes:
            assert member in holders[box]
            assert member in writers or not holders[box].intersection(writers)
            # Nobody could hand a piece on and have the two more even.
            for other in (holders[box].intersection(writers) or holders[box]) - {member}:
                assert load[other] + box.nbytes >= load[member]
    assert assign(specs, writers[::-1]) == assigned


def test_a_piece_goes_to_a_worker_that_nothing_else_was_left_for() -> None:
    """Largest first gives worker 1 two of the three, since only the first of them could have gone to worker 3."""
    whole = [((0,), 4), ((0, 1, 3), 1), ((0, 1, 2), 1), ((0, 1, 2), 1)]
    specs = [
        ShardedSpec(f"t{n}", "float32", (size,), (Piece((0,), (size,), holders),))
        for n, (holders, size) in enumerate(whole)
    ]
    assigned = assign(specs, range(4))
    assert {member: size_of(boxes) for member, boxes in assigned.items()} == {0: 16, 1: 4, 2: 4, 3: 4}


def test_a_piece_of_which_all_holders_are_gone_is_told_with_them() -> None:
    pieces = (Piece((0,), (2,), (0, 1)), Piece((2,), (4,), (2,)))
    spec = ShardedSpec("kernel", "float32", (4,), pieces)
    assert assign([spec], [0, 1, 2], gone=[0]) == {1: [spec.box(pieces[0])], 2: [spec.box(pieces[1])]}
    with pytest.raises(PiecesLost, match=r"1 that only worker 2 held, such as kernel\[2:4\]") as lost:
        assign([spec], [0, 1], gone=[2])
    assert lost.value.holders == (2,)


def _seconds(parts: int) -> float:
    """Processor time to assign and check that many pieces along each of three dimensions."""
    cuts = list(itertools.product(range(parts), repeat=3))
    pieces = tuple(Piece(cut, tuple(n + 1 for n in cut), (sum(cut) % 8, 7)) for cut in cuts)
    spec = ShardedSpec("kernel", "float32", (parts,) * 3, pieces)
    began = time.process_time()
    assigned = assign([spec], range(8))
    check_boxes((box for boxes in assigned.values() for box in boxes), [spec])
    return time.process_time() - began


def test_thousands_of_pieces_cost_no_more_than_in_proportion() -> None:
    few, many = (min(_seconds(parts) for _ in range(3)) for parts in (8, 16))
    assert many < 32 * few  # There are 8 times as many, and 64 times as many pairs.


def test_a_tensor_that_claims_to_be_divided_along_dozens_of_dimensions_is_refused_at_once() -> None:
    shape = (2,) * 32
    boxes = [a_box(shape, ((0, 1),) * n + ((1, 2),) + ((0, 2),) * (31 - n)) for n in range(32)]
    with pytest.raises(ValueError, match="along 32 dimensions"):
        check_boxes(boxes)
