"""The short form of the tests names ways of the table in docs/tested-combinations.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.ways.catalogue.all_ways import ALL
from tests.ways.drill import SHORT_FORM, parameters

ROOT = Path(__file__).parents[2]


def test_every_way_of_the_short_form_is_in_the_table_and_is_run() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from ways_table import TABLES, ways
    finally:
        sys.path.remove(str(ROOT / "docs"))
    found = [way for modules in TABLES.values() for way in ways(modules)]
    assert sorted(way.name for way in found) == sorted({way.name for way in ALL})
    plain = {each.id for each in parameters(found) if pytest.mark.chaos not in each.marks}
    assert plain == {f"{name}-{strategy}" for name, held in SHORT_FORM.items() for strategy in held}
