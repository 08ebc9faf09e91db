"""`make docs-check` notices where a picture that a program draws is not current."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_generated import check

DOCS = ROOT / "docs"
DRAWN = {
    "rooms_picture.py": ["rooms-dark.svg", "rooms-light.svg"],
    "alignment_picture.py": ["alignment-dark.svg", "alignment-light.svg"],
    "timeline_picture.py": [
        *("timeline-dark.svg", "timeline-light.svg"),
        *("timeline-narrow-dark.svg", "timeline-narrow-light.svg"),
    ],
}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of what the programs read and write."""
    for file in ("pictures.py", "timeline_record.json", "index.md", *DRAWN):
        shutil.copy(DOCS / file, tmp_path)
    shutil.copytree(DOCS / "images", tmp_path / "images")
    return tmp_path


@pytest.mark.parametrize("script", DRAWN)
def test_a_picture_that_was_edited_or_is_missing_is_noticed(script: str, docs: Path) -> None:
    edited, *_, missing = DRAWN[script]
    (docs / "images" / edited).write_text("<svg/>")
    (docs / "images" / missing).unlink()
    done = check(docs / script)
    assert done.returncode == 1
    for name in (edited, missing):
        assert f"docs/images/{name}" in done.stderr


def test_a_first_page_with_another_verdict_than_the_record_is_noticed(docs: Path) -> None:
    page = docs / "index.md"
    page.write_text(page.read_text().replace("56 tensors", "57 tensors"))
    done = check(docs / "timeline_picture.py")
    assert done.returncode == 1
    assert "does not show the verdict of the record" in done.stderr


def test_the_readme_shows_the_picture_with_its_verdict() -> None:
    """That of docs/index.md, which is held against the record."""
    (verdict,) = [
        line
        for line in (DOCS / "index.md").read_text().splitlines()
        if line.startswith("VERDICT: identical (56")
    ]
    readme = (ROOT / "README.md").read_text()
    assert f"> `{verdict}`" in readme
    for scheme in ("light", "dark"):
        assert f"docs/images/timeline-{scheme}.svg" in readme


def test_the_record_is_of_the_drill_of_make_demo_in_which_nothing_was_lost() -> None:
    record = json.loads((DOCS / "timeline_record.json").read_text())
    demo = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    assert record["command"].partition(" --json")[0].removeprefix("keras-preempt ") in " ".join(demo.split())
    drill = record["drill"]
    assert (drill["verdict"], len(drill["preemptions"]), drill["steps_lost"]) == ("identical", 2, 0)
    assert [start["first"] for start in record["starts"]] == [
        0,
        *(save["step"] for save in record["saves"][:-1]),
    ]
    assert record["saves"][-1]["step"] == drill["steps"]
