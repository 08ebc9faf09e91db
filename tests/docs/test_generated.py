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

generators = pytest.mark.parametrize("script", GENERATORS, ids=lambda script: script.name)


def check(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


def page_of(script: Path) -> Path:
    (page,) = (
        page for page in DOCS.glob("*.md") if f": written by docs/{script.name} from " in page.read_text()
    )
    return page


@generators
def test_the_page_is_current(script: Path) -> None:
    done = check(script)
    assert done.returncode == 0, done.stderr


@generators
def test_a_page_that_was_edited_or_has_lost_its_marks_is_noticed(script: Path, tmp_path: Path) -> None:
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


@generators
def test_make_checks_it(script: Path) -> None:
    assert f"docs/{script.name} --check" in (ROOT / "Makefile").read_text()
