"""What the benchmark of buckets promises, in its short form: ratios of one run, with room for a busy machine."""

from __future__ import annotations

import pytest

from tests.benchmarked import measured

pytestmark = pytest.mark.bench


def test_four_connections_are_much_faster_than_one_and_workers_share_the_bytes() -> None:
    rows = measured("buckets.py", "--quick")
    for scheme in ("gs", "s3", "az"):
        _, save, _, restore = map(float, rows[f"{scheme}://, keras_preempt, 4 connections"])
        assert save >= 1.5  # 3 and more where nothing else runs
        assert restore >= 1.5
        assert rows[f"{scheme}://, training in between"] == ["0"] * 5
        writes, listings, reads, deletions, every = map(int, rows[f"{scheme}://, save and commit"])
        assert deletions == 0
        assert every == writes + listings + reads < 40
    for workers in ("1", "2"):
        assert float(rows[workers][2].rstrip("%")) < 10, "each writes 1/N"
    assert float(rows["2"][4]) > 1.3


def test_workers_that_restore_together_read_every_byte_once() -> None:
    rows = measured("restore_together.py", "--quick")
    for place in (
        "gs://, 2 MB/s for each worker",
        "gs://, 2 MB/s for the bucket",
        "s3://, 2 MB/s for each worker",
    ):
        apart, together = (rows[f"2 workers, {place}: {way}"] for way in ("read", "exchange"))
        assert float(apart[0]) == pytest.approx(2, abs=0.02)
        assert float(together[0]) == pytest.approx(1, abs=0.02)
        assert float(together[2]) > 1.2, "2 where nothing else runs"
