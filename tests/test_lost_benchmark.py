"""What a preemption costs each contestant: README.md and docs/comparison.md show what is counted."""

from __future__ import annotations

import re

import pytest

from tests.benchmarked import BENCHMARKS, measured, rows_of

from what_is_lost import ALL, CONTESTANTS, PEERS, check_repeats, in_the_model  # isort: skip

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


def test_the_page_shows_what_was_measured_of_peers_and_with_which_versions() -> None:
    """They have environments of their own, which no test makes: what the benchmark printed is kept."""
    printed = (BENCHMARKS / "peers" / "measured.txt").read_text()
    titles = {each.title for each in PEERS.values()}
    rows = {title: cells for title, cells in rows_of(printed).items() if title in titles}
    assert rows == {title: cells for title, cells in shown().items() if title in titles}
    assert len({ALL[TITLES[title]].peer for title in rows}) >= 4
    page = (ROOT / "docs" / "comparison.md").read_text()
    for requirements in (BENCHMARKS / "peers").glob("*.txt"):
        wanted = re.findall(r"^(\S+)==(\S+)$", requirements.read_text(), re.MULTILINE)
        for name, version in wanted:
            assert f"{name} {version}" in page, requirements.name


def test_the_readme_shows_the_figures_of_the_page() -> None:
    table = (ROOT / "README.md").read_text().partition("## How it compares")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    rows = {name.strip(" *").replace("`", ""): [cell.strip() for cell in cells] for name, *cells in lines}
    figures = {title: cells for title, cells in rows.items() if title in TITLES}
    assert len(figures) == len(rows) - 1 == len(shown())  # One is the header.
    assert len(figures) >= len(CONTESTANTS)
    for title, (same, again, _, twice, never, _) in shown().items():
        shown_again, epoch, shown_same = figures[title]
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


def test_a_script_whose_samples_differ_from_start_to_start_is_not_compared() -> None:
    first, second, third = (0, (1,)), (1, (2,)), (2, (3,))
    check_repeats([first, second, third], [first, second], "it")
    with pytest.raises(RuntimeError, match="it does not repeat itself: step 1"):
        check_repeats([first, second], [first, (1, (3,))], "it")
