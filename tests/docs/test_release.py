"""The files that speak of versions agree: the package, the citation, the changelog and the page on compatibility."""

from __future__ import annotations

import re

import yaml
from packaging.version import Version

import keras_preempt
from keras_preempt.checkpoint import documents
from tests.docs.pages import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
NEWEST = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", RELEASES[1])


def test_the_changelog_has_the_form_that_it_claims() -> None:
    """https://keepachangelog.com/en/1.1.0/: what is unreleased, then releases with dates, the newest first."""
    assert RELEASES[0] == "[Unreleased]"
    numbers, dates = [], []
    for release in RELEASES[1:]:
        found = re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", release)
        assert found, release
        numbers.append(tuple(map(int, found.groups()[:3])))
        dates.append(found[4])
    assert numbers == sorted(numbers, reverse=True)
    assert dates == sorted(dates, reverse=True)
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for text in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert set(kinds) <= set(order), kinds
        assert kinds == sorted(set(kinds), key=order.index), kinds


def test_the_version_is_that_of_a_release_only_while_nothing_is_unreleased() -> None:
    assert NEWEST is not None
    released, ours = Version(NEWEST[1]), Version(keras_preempt.__version__)
    if CHANGELOG.split("\n## ")[1] == "[Unreleased]\n":
        assert ours == released
    else:
        assert ours.is_devrelease
        assert ours > released


def test_the_citation_names_the_newest_release() -> None:
    assert NEWEST is not None
    version, date = NEWEST.groups()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == ("keras-preempt", version)
    assert citation["date-released"].isoformat() == date


def test_the_page_on_compatibility_has_every_format_and_release() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([\d., ]+) \| ", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, documents.FORMAT + 1))
    releases = [release for _, each in rows for release in each.split(", ")]
    assert sorted(releases) == sorted(re.findall(r"\[([\d.]+)\] - ", CHANGELOG))
    for number, _ in rows:
        kept = list((ROOT / "tests" / "formats").glob(f"format-{number}*"))
        assert kept, f"no directory of format {number} is tested"
