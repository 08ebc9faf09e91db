"""Values of M replicas become those of N: totals stay, statistics are averaged, and what is alike is copied."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from keras_preempt.state.regroup import Rule, average, regroup, rule_of, share, total

FLOATS: list[DTypeLike] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
REPLICAS = st.integers(1, 9)


def summed(parts: list[np.ndarray]) -> np.ndarray:
    """Their sum in their own dtype, as the replicas add them up."""
    result = np.zeros_like(parts[0])
    for part in parts:
        result = (result + part).astype(result.dtype)
    return result


@given(st.integers(0, 2**64 - 1), st.sampled_from(FLOATS), REPLICAS, st.randoms(use_true_random=False))
def test_a_shared_out_total_adds_up_to_the_same_bits_in_any_order(
    bits: int, dtype: DTypeLike, replicas: int, order: random.Random
) -> None:
    raw = np.frombuffer(bits.to_bytes(8, "little"), dtype)
    whole = np.where(np.isfinite(raw), raw, np.zeros_like(raw))
    parts = share(whole, replicas)
    assert len(parts) == replicas
    assert all(part.dtype == whole.dtype and part.shape == whole.shape for part in parts)
    order.shuffle(parts)
    np.testing.assert_array_equal(summed(parts), whole)


@given(st.integers(1, 2**24), st.integers(-60, 60), REPLICAS)
def test_every_replica_gets_the_same_share_but_for_the_last_digit(
    digits: int, exponent: int, replicas: int
) -> None:
    whole = np.ldexp(np.float32(digits), exponent).reshape(())
    parts = share(whole, replicas)
    assert float(max(parts)) - float(min(parts)) <= float(np.spacing(whole))


@given(st.integers(-(2**31), 2**31 - 1), REPLICAS)
def test_whole_numbers_are_shared_out_without_a_remainder(value: int, replicas: int) -> None:
    parts = share(np.array([value, 0], np.int32), replicas)
    assert sum(int(part[0]) for part in parts) == value
    assert {part.dtype for part in parts} == {np.dtype(np.int32)}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_total_that_is_not_finite_stays_what_it_is(value: float) -> None:
    parts = share(np.array([value, 6.0], np.float32), 3)
    np.testing.assert_array_equal(summed(parts), np.array([value, 6.0], np.float32))


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=9), REPLICAS)
def test_metrics_keep_their_totals_on_any_number_of_replicas(counts: list[int], replicas: int) -> None:
    values = [np.array([count, 2 * count], np.float32) for count in counts]
    parts, _ = regroup(values, replicas, Rule.TOTAL)
    assert len(parts) == replicas
    np.testing.assert_array_equal(summed(parts), np.array([sum(counts), 2 * sum(counts)], np.float32))


def test_the_same_number_of_replicas_keeps_every_value() -> None:
    values = [np.array([float(n)], np.float32) for n in range(3)]
    for rule in Rule:
        assert regroup(values, 3, rule)[0] == values


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
