"""The parts of pages that programs write are current, and `make docs-check` notices where one is not."""

from __future__ import annotations

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


def check(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


def page_of(script: Path) -> Path:
    (page,) = (
        page for page in DOCS.glob("*.md") if f": written by docs/{script.name} from " in page.read_text()
    )
    return page


@pytest.mark.parametrize("script", [*GENERATORS, *DRAWING], ids=lambda script: script.name)
def test_what_it_writes_is_current_and_make_checks_it(script: Path) -> None:
    done = check(script)
    assert done.returncode == 0, done.stderr
    assert f"docs/{script.name} --check" in (ROOT / "Makefile").read_text()


def test_a_page_that_was_edited_or_has_lost_its_marks_is_noticed(tmp_path: Path) -> None:
    script = GENERATORS[0]  # All of them call the same function for it.
    page = page_of(script)
    for file in (script, DOCS / "generated.py"):
        shutil.copy(file, tmp_path)
    end = f"<!-- {page.stem}: end -->"
    for text, status, message in [
        (page.read_text().replace(end, f"edited\n\n{end}"), 1, f"docs/{page.name} is stale"),
        (page.read_text().replace(end, ""), 1, "a page without them"),
        (page.read_text() + "not generated", 0, ""),
    ]:
        (tmp_path / page.name).write_text(text)
        done = check(tmp_path / script.name)
        assert done.returncode == status
        assert message in done.stderr
