"""Rows of a log file decide a verdict unless it is known that they had to differ."""

from __future__ import annotations

import pytest

from keras_preempt.cli.drill.comparison import explained_rows

ROWS = "callbacks/CSVLogger/rows"
FIRST = b"epoch,loss\n0,0.5\n1,0.25\n"


@pytest.mark.parametrize(
    ("preempted", "explained"),
    [
        (FIRST + b"0,0.5\n1,0.25\n", True),  # append=True: the header is there already.
        (FIRST, True),
        (FIRST + b"1,0.25\n", True),  # Of a fit that began after the first epoch.
        (FIRST + b"0,0.5\n1,0.26\n", False),
        (FIRST + b"0,0.5\n", False),  # A row is missing.
        (FIRST + b"0,0.5\n0,0.5\n1,0.25\n", False),  # One came twice.
        (b"epoch,loss\n0,0.5\n", False),
    ],
)
def test_rows_after_those_of_the_first_run_are_explained_only_if_they_are_the_same(
    preempted: bytes, explained: bool
) -> None:
    why = explained_rows([{ROWS: "/x/log.csv"}], {"/x/log.csv": FIRST})
    assert (why(0, ROWS, FIRST, preempted) is not None) is explained


def test_one_file_of_several_workers_is_explained_and_one_each_is_not() -> None:
    one = explained_rows([{ROWS: "/x/log.csv"}, {ROWS: "/x/log.csv"}], {})
    assert "several workers write" in (one(1, ROWS, b"a", b"b") or "")
    each = explained_rows([{ROWS: "/x/0.csv"}, {ROWS: "/x/1.csv"}], {})
    assert each(1, ROWS, b"a", b"b") is None


def test_only_rows_are_set_aside() -> None:
    files = [{ROWS: "/x/log.csv"}]
    for why in (explained_rows(files, {"/x/log.csv": b"a"}), explained_rows(files, None)):
        assert why(0, "callbacks/EarlyStopping/best_weights/0", b"a", b"aa") is None
    assert explained_rows(files, None)(0, ROWS, b"a", b"b") is not None
