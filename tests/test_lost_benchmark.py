"""What a preemption costs each contestant: README.md and docs/comparison.md show what is counted."""

from __future__ import annotations

import re

import pytest

from tests.benchmarked import BENCHMARKS, measured

from what_is_lost import ALL, CONTESTANTS, in_the_model  # isort: skip

ROOT = BENCHMARKS.parent
TITLES = {each.title: name for name, each in ALL.items()}


def counted(*contestants: str) -> dict[str, list[str]]:
    """The rows of the benchmark's table, by title."""
    found = measured("what_is_lost.py", "--only", *contestants)
    return {title: cells for title, cells in found.items() if title in TITLES}


def shown() -> dict[str, list[str]]:
    """The rows that the page on the comparison shows."""
    page = (ROOT / "docs" / "comparison.md").read_text()
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line
    ]
    return {title: cells for title, *cells in lines if title in TITLES}


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_the_page_shows_what_is_counted() -> None:
    names = [
        name for name in CONTESTANTS if name != "orbax"
    ]  # Not on Python 3.10, on which these tests run too.
    found = counted(*names)
    assert len(found) == len(names)
    assert found.items() <= shown().items()


def test_ours_loses_nothing_and_keras_callback_begins_the_epoch_again() -> None:
    """On the page, which shows what is counted."""
    assert shown()["PreemptionCallback"] == ["yes", "0", "80", "0", "0", "75"]
    # It was told to leave in the 14th step of an epoch, and continues at the beginning of that.
    assert shown()["BackupAndRestore"] == ["no", "14", "80", "0", "0", "143"]


def test_the_readme_shows_the_figures_of_the_page() -> None:
    table = (ROOT / "README.md").read_text().partition("## How it compares")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if "| measured |" in line]
    figures = {name.strip(" *").replace("`", ""): [cell.strip() for cell in cells] for name, *cells in lines}
    assert len(figures) == len(shown()) == len(CONTESTANTS)
    for title, (same, again, _, twice, never, _) in shown().items():
        _, shown_again, epoch, shown_same = figures[title]
        assert (shown_again, shown_same) == (again, same), title
        counts = re.findall(r"(\d+) of 640 samples (twice|never)", epoch)
        assert {what: count for count, what in counts} == {
            what: count for what, count in (("twice", twice), ("never", never)) if count != "0"
        }, title


def test_steps_that_a_later_start_runs_again_are_not_in_the_model() -> None:
    first, second, third = (0, (1,)), (1, (2,)), (2, (3,))
    assert in_the_model([[first, second], [second, third]]) == [first, second, third]
    assert in_the_model([[first, second], [third]]) == [first, second, third]
    again = (0, (4,))
    assert in_the_model([[first, second], [again]]) == [again]
