"""A position in one setup's batches becomes one in another's: nothing is left out, little is used again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.other_workers import Setup
from keras_preempt.state.samples import Continuation, convert


def setup(batch: int | None = 8, batches: int | None = 6, *, workers: int = 1, built_from: int = 0) -> Setup:
    return Setup(workers, workers, batch, batches, built_from)


def at(batch: int, *, epoch: int = 0, phase: str = "train") -> dict[str, Any]:
    return {"epoch": epoch, "phase": phase, "batch": batch, "step": 100}


def place(batches: int, iterators: int = 1, drawn_before: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "iterators": iterators,
        "drawn_before": list(drawn_before),
        "batches": batches,
        "current": True,
        "num_batches": 6,
    }


def converted(
    where: dict[str, Any], input_place: dict[str, Any], old: Setup, new: Setup, spe: int = 1
) -> Continuation:
    return convert(where, input_place, old, new, steps_per_execution=spe, num_batches=new.batches)


@given(st.integers(1, 6), st.integers(1, 64), st.integers(1, 64), st.integers(1, 100), st.data())
def test_no_sample_is_left_out_and_less_than_an_execution_is_used_again(
    spe: int, old_batch: int, new_batch: int, steps: int, data: st.DataObject
) -> None:
    samples = steps * old_batch
    old = setup(old_batch, steps)
    new = setup(new_batch, -(-samples // new_batch), workers=2)
    used = data.draw(st.integers(0, steps - 1))
    found = converted(at(used), place(used), old, new, spe)
    batch = found.where["batch"]
    assert batch % spe == 0
    assert found.sample == batch * new_batch
    assert 0 <= used * old_batch - batch * new_batch == found.again < spe * new_batch
    assert found.place["batches"] == batch
    assert found.where == {**at(used), "batch": batch}
    assert not found.warnings


def test_the_same_batches_go_on_at_the_same_batch() -> None:
    found = converted(at(4, epoch=2), place(4, 5, (6, 0, 6, 0)), setup(), setup(workers=3))
    assert (found.where, found.sample, found.again) == (at(4, epoch=2), 32, 0)
    assert found.place == place(4, 5, (6, 0, 6, 0))


def test_at_least_one_step_of_the_epoch_is_left() -> None:
    found = converted(at(4), place(4), setup(2, 5), setup(4, 2, workers=2))
    assert (found.where["batch"], found.again) == (1, 4)


def test_whole_epochs_stay_whole() -> None:
    # 44 samples: 5 batches and a part of 8, 3 and a part of 12. Two iterators an epoch, one thrown away.
    found = converted(at(3, epoch=1), place(3, 3, (6, 0)), setup(8, 6), setup(12, 4, workers=2))
    assert found.place["drawn_before"] == [4, 0]
    assert (found.where["batch"], found.place["batches"], found.again) == (2, 2, 0)
    validation = converted(at(1, phase="validation"), place(6), setup(8, 6), setup(12, 4, workers=2))
    assert validation.place["batches"] == 4
    assert (validation.where, validation.sample) == (at(1, phase="validation"), 0)


def test_one_iterator_over_all_epochs_goes_on_through_samples() -> None:
    # .repeat(): 2 epochs of 6 batches and 3 more were drawn from the one iterator.
    found = converted(at(3, epoch=2), place(15), setup(8, 6), setup(12, 4, workers=2))
    assert found.place["batches"] == 2 * 4 + 2
    assert found.where["batch"] == 2


def test_the_iterator_that_builds_a_model_under_a_strategy_counts() -> None:
    alone, strategy = setup(), setup(workers=2, built_from=1)
    left = converted(at(2, epoch=1), place(2, 3, (6, 0)), strategy, alone)
    assert (left.place["iterators"], left.place["drawn_before"]) == (4, [1, 6, 0])
    back = converted(at(2, epoch=1), left.place, alone, strategy)
    assert (back.place["iterators"], back.place["drawn_before"]) == (3, [6, 0])
    assert not left.warnings
    assert not back.warnings


def test_an_order_that_cannot_be_made_again_is_said() -> None:
    found = converted(at(2), place(2), setup(), setup(workers=2, built_from=1))
    assert (found.place["iterators"], found.place["drawn_before"]) == (1, [])
    assert "order of the first epoch" in found.warnings[0]


def test_where_no_batch_size_is_known_the_number_of_batches_tells() -> None:
    found = converted(at(3), place(3), setup(None, 6), setup(None, 4, workers=2))
    assert (found.where["batch"], found.sample, found.again) == (2, None, None)


def test_where_nothing_is_known_the_epoch_begins_again_and_that_is_said() -> None:
    found = converted(at(3, epoch=2), place(3, 3, (5, 5)), setup(None, None), setup(None, None, workers=2))
    assert found.where == at(0, epoch=2, phase="epoch")
    assert (found.place["iterators"], found.place["drawn_before"], found.place["batches"]) == (2, [5], 5)
    assert not found.place["current"]
    assert "the epoch begins again" in found.warnings[0]
    first = converted(at(3), place(3), setup(None, None), setup(None, None, workers=2))
    assert (first.place["iterators"], first.place["batches"]) == (0, 0)
