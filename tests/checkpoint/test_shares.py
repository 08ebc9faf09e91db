from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.exchange import share_out

size_lists = st.lists(st.integers(0, 1 << 28), max_size=40)


@given(size_lists, st.integers(1, 9))
def test_every_file_has_one_reader_and_a_share_exceeds_an_even_one_by_less_than_a_file(
    sizes: list[int], workers: int
) -> None:
    shares = share_out(sizes, workers)
    assert len(shares) == workers
    assert sorted(chain.from_iterable(shares)) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares)
    even = sum(sizes) / workers
    for share in shares:
        read = sum(sizes[file] for file in share)
        assert read <= even + max(sizes, default=0) * (1 - 1 / workers) + 1e-6


def test_there_must_be_a_worker() -> None:
    with pytest.raises(ValueError, match="Expected at least one worker"):
        share_out([1], 0)


def test_who_has_a_large_file_gets_fewer_others_and_empty_ones_do_not_all_go_to_one_worker() -> None:
    assert share_out([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]
    assert share_out([10, 100, *[10] * 9], 2) == [[1], [0, *range(2, 11)]]
    assert share_out([30, 30, 20, 20, 20], 2) == [[0, 2, 4], [1, 3]]
