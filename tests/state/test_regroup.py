"""Values and positions of other workers: totals stay, statistics are averaged, and no sample is left out."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from keras_preempt import PreemptionCallback
from keras_preempt.backend.tensorflow.datasets import batch_size
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.state.regroup import Rule, average, regroup, rule_of, share, total
from keras_preempt.state.samples import Continuation, convert
from tests.cluster.small_fit import make_model

FLOATS: list[DTypeLike] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
REPLICAS = st.integers(1, 9)


def summed(parts: list[np.ndarray]) -> np.ndarray:
    """Their sum in their own dtype, as the replicas add them up."""
    result = np.zeros_like(parts[0])
    for part in parts:
        result = (result + part).astype(result.dtype)
    return result


@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([*FLOATS, np.int32]),
    REPLICAS,
    st.randoms(use_true_random=False),
)
def test_a_shared_out_total_adds_up_to_the_same_bits_in_any_order(
    bits: int, dtype: DTypeLike, replicas: int, order: random.Random
) -> None:
    raw = np.frombuffer(bits.to_bytes(8, "little"), dtype)
    with np.errstate(invalid="ignore"):  # A NaN may be a signalling one.
        whole = np.where(np.isfinite(raw), raw, np.zeros_like(raw))
    parts = share(whole, replicas)
    assert len(parts) == replicas
    assert all(part.dtype == whole.dtype and part.shape == whole.shape for part in parts)
    order.shuffle(parts)
    np.testing.assert_array_equal(summed(parts), whole)


@given(st.integers(1, 2**24), st.integers(-60, 60), REPLICAS)
def test_the_shares_differ_in_the_last_digit_only(digits: int, exponent: int, replicas: int) -> None:
    whole = np.ldexp(np.float32(digits), exponent).reshape(())
    parts = share(whole, replicas)
    assert float(max(parts)) - float(min(parts)) <= float(np.spacing(whole))


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000])
def test_a_total_that_is_not_finite_stays_what_it_is(bits: int) -> None:
    """Two NaNs, of which one is signalling, and both infinities."""
    whole = np.array([bits, 0x40C00000], np.uint32).view(np.float32)
    parts = share(whole, 3)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(summed(parts), whole)


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), REPLICAS)
def test_what_is_alike_is_copied_to_the_bit(bits: int, old: int, new: int) -> None:
    values = [np.array([bits, 0x7FC00001], np.uint32).view(np.float32)] * old
    for rule in (Rule.AVERAGE, Rule.FIRST, Rule.OWN):
        parts, _ = regroup(values, new, rule)
        assert [part.tobytes() for part in parts] == [values[0].tobytes()] * new


def test_statistics_are_averaged_and_the_same_everywhere() -> None:
    values = [np.array([1.0, 3.0], np.float32), np.array([2.0, 5.0], np.float32)]
    parts, how = regroup(values, 3, Rule.AVERAGE)
    assert how == "averaged"
    for part in parts:
        np.testing.assert_array_equal(part, np.array([1.5, 4.0], np.float32))
        assert part.dtype == np.float32


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (np.array([1, 2, 2], np.int8), np.int8(2)),
        (np.array([-7, -8, -8], np.int64), np.int64(-8)),
        (np.array([2**63, 2**63 + 2], np.uint64), np.uint64(2**63 + 1)),
        (np.array([1.0, 2.0, 4.5], ml_dtypes.bfloat16), ml_dtypes.bfloat16(2.5)),
        (np.array([60000, 60000, 60001], np.float16), np.float16(60000)),
    ],
)
def test_the_average_is_rounded_once_to_its_own_dtype(values: np.ndarray, mean: Any) -> None:
    result = average(list(values.reshape(-1, 1)))
    assert result.dtype == values.dtype
    assert result[0] == mean


def test_totals_are_rounded_once() -> None:
    values = [np.array(value, np.float32) for value in (2**24, 1, 1)]
    assert total(values) == np.float32(2**24 + 2)  # One by one, each 1 would be lost.


def test_generators_go_on_on_the_replica_of_their_number() -> None:
    values = [np.array([0, n], np.uint32) for n in (10, 20)]
    assert [int(part[1]) for part in regroup(values, 5, Rule.OWN)[0]] == [10, 20, 10, 20, 10]
    assert [int(part[1]) for part in regroup(values, 1, Rule.OWN)[0]] == [10]
    assert [int(part[1]) for part in regroup(values, 3, Rule.FIRST)[0]] == [10, 10, 10]


@pytest.mark.parametrize(
    ("aggregation", "dtype", "seed", "rule"),
    [
        ("sum", np.float32, False, Rule.TOTAL),
        ("sum", np.int64, False, Rule.TOTAL),
        ("mean", np.float32, False, Rule.AVERAGE),
        ("only_first_replica", np.int64, False, Rule.FIRST),
        ("none", np.float32, False, Rule.AVERAGE),
        ("none", ml_dtypes.bfloat16, False, Rule.AVERAGE),
        ("none", np.int32, False, Rule.OWN),
        ("none", np.uint32, True, Rule.OWN),
        ("sum", np.bool_, False, Rule.OWN),
        ("sum", np.dtype(object), False, Rule.OWN),
    ],
)
def test_the_rule_follows_from_how_a_variable_is_aggregated(
    aggregation: str, dtype: DTypeLike, seed: bool, rule: Rule
) -> None:
    assert rule_of(aggregation, dtype, seed=seed) is rule


def setup(batch: int | None = 8, batches: int | None = 6, *, workers: int = 1, built_from: int = 0) -> Setup:
    return Setup(workers, workers, batch, batches, built_from)


def at(batch: int, *, epoch: int = 0, phase: str = "train") -> dict[str, Any]:
    return {"epoch": epoch, "phase": phase, "batch": batch, "step": 100}


def place(batches: int, iterators: int = 1, drawn_before: tuple[int, ...] = ()) -> dict[str, Any]:
    drawn = {"iterators": iterators, "drawn_before": list(drawn_before), "batches": batches}
    return {**drawn, "current": True, "num_batches": 6}


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
    # 44 samples: 5 batches and a part of 8, 4 and a part of 10. Two iterators an epoch, one thrown away.
    found = converted(at(3, epoch=1), place(3, 3, (6, 0)), setup(8, 6), setup(10, 5, workers=2))
    assert found.place["drawn_before"] == [5, 0]
    assert (found.where["batch"], found.place["batches"], found.again) == (2, 2, 4)
    validation = converted(at(1, phase="validation"), place(6), setup(8, 6), setup(10, 5, workers=2))
    assert validation.place["batches"] == 5
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


Data = tf.data.Dataset

model = functools.cache(make_model)


def batched() -> Data:
    return Data.range(20).map(lambda n: (tf.stack([n, n]), n)).batch(6).map(lambda x, y: (x + 1, y))


@pytest.mark.parametrize(
    "behind",
    [
        lambda data: data,
        lambda data: data.map(lambda x, y: (x, y), num_parallel_calls=2),
        lambda data: data.cache(),
        lambda data: data.shuffle(3, seed=1),
        lambda data: data.skip(1).take(2),
        lambda data: data.repeat(),
        lambda data: data.with_options(tf.data.Options()),
        lambda data: data.prefetch(2),
    ],
)
def test_it_is_seen_behind_what_keeps_batches(behind: Callable[[Data], Data]) -> None:
    assert batch_size(behind(batched())) == 6


def test_it_is_not_guessed() -> None:
    generator = Data.from_generator(lambda: iter([[1]]), output_signature=tf.TensorSpec([None], tf.int32))
    unbatched = batched().flat_map(lambda x, y: Data.from_tensor_slices((x, y)))
    assert [batch_size(data) for data in (Data.range(20), generator, unbatched)] == [None] * 3


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.ones((5, 2)), np.ones((5, 1))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ({"x": np.ones((20, 2)), "y": np.ones((20, 1)), "batch_size": 6}, (6, 4)),
        ({"x": Data.from_tensor_slices((np.ones((20, 2)), np.ones((20, 1)))).batch(6)}, (6, 4)),
        ({"x": batched().map(lambda x, y: (x, y[:, None])).repeat(), "steps_per_epoch": 3}, (6, 3)),
        ({"x": Sequence()}, (None, 4)),
    ],
    ids=["arrays", "a dataset", "an endless dataset", "a PyDataset"],
)
def test_a_run_keeps_it_where_it_is_seen(
    x: dict[str, Any], expected: tuple[int | None, int], tmp_path: Path
) -> None:
    model().fit(**x, shuffle=False, callbacks=[PreemptionCallback(tmp_path)], verbose=0)
    setup = json.loads((tmp_path / "run.json").read_text())["setup"]
    assert (setup["global_batch"], setup["batches"]) == expected
    assert (setup["workers"], setup["replicas"], setup["built_from"]) == (1, 1, 0)
