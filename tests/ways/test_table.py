"""The table in docs/guarantees.md is what the catalogue and the short form give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ways.drill import parameters
from tests.ways.short_form import SHORT_FORM

ROOT = Path(__file__).parents[2]


def test_the_table_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "ways_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_way_of_the_short_form_is_in_the_table_and_is_run() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from ways_table import TABLES, ways
    finally:
        sys.path.remove(str(ROOT / "docs"))
    found = [way for modules in TABLES.values() for way in ways(modules)]
    names = [way.name for way in found]
    assert len(set(names)) == len(names)
    assert set(SHORT_FORM) <= set(names)
    plain = {p.id for p in parameters(found) if not any(mark.name == "chaos" for mark in p.marks)}  # type: ignore[attr-defined]
    assert plain == {f"{name}-{strategy}" for name, held in SHORT_FORM.items() for strategy in held}
