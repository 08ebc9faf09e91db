"""What programs write into pages and draw is current, and `make docs-check` notices where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
GENERATORS = sorted(path for path in DOCS.glob("*.py") if "sys.exit(main(__file__" in path.read_text())

DRAWING = sorted(path for path in DOCS.glob("*_picture.py"))
DRAWN = {
    "rooms_picture.py": ["rooms-dark.svg", "rooms-light.svg"],
    "alignment_picture.py": ["alignment-dark.svg", "alignment-light.svg"],
    "timeline_picture.py": [
        *("timeline-dark.svg", "timeline-light.svg"),
        *("timeline-narrow-dark.svg", "timeline-narrow-light.svg"),
    ],
}


def check(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize("script", [*GENERATORS, *DRAWING], ids=lambda script: script.name)
def test_what_it_writes_is_current_and_make_checks_it(script: Path) -> None:
    done = check(script)
    assert done.returncode == 0, done.stderr
    assert f"docs/{script.name} --check" in (ROOT / "Makefile").read_text()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of what the programs read and write, but for most pages."""
    for file in ("generated.py", "pictures.py", "timeline_record.json", "index.md", *DRAWN):
        shutil.copy(DOCS / file, tmp_path)
    shutil.copytree(DOCS / "images", tmp_path / "images")
    return tmp_path


def test_a_page_that_was_edited_or_has_lost_its_marks_is_noticed(docs: Path) -> None:
    script = GENERATORS[0]  # All of them call the same function for it.
    shutil.copy(script, docs)
    written = f": written by docs/{script.name} from "
    (page,) = (page for page in DOCS.glob("*.md") if written in page.read_text())
    end = f"<!-- {page.stem}: end -->"
    for text, status, message in [
        (page.read_text().replace(end, f"edited\n\n{end}"), 1, f"docs/{page.name} is stale"),
        (page.read_text().replace(end, ""), 1, "a page without them"),
        (page.read_text() + "not generated", 0, ""),
    ]:
        (docs / page.name).write_text(text)
        done = check(docs / script.name)
        assert done.returncode == status
        assert message in done.stderr


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


def test_the_readme_says_on_its_first_screen_where_it_is_for() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    for word in ("spot", "Google Cloud", "AWS", "Azure", "Slurm", "Kubernetes"):
        assert word in first_screen


def test_the_readme_shows_the_picture_with_its_verdict() -> None:
    """That of docs/index.md, which is held against the record."""
    first_page = (DOCS / "index.md").read_text().splitlines()
    (verdict,) = (line for line in first_page if line.startswith("VERDICT: identical (56"))
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
    *saved_at, end = [save["step"] for save in record["saves"]]
    assert [start["first"] for start in record["starts"]] == [0, *saved_at]
    assert end == drill["steps"]
