"""Writes the tables in docs/tested-combinations.md from the catalogue of ways to train, `tests/ways/catalogue`.

Each row is a test in `tests/ways`. Run `python docs/ways_table.py` after changing the catalogue.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from generated import main  # noqa: E402
from table_notes import Notes  # noqa: E402

from tests.ways.on_jax import NOT_DRILLED, NotOnJax, verdict_of  # noqa: E402
from tests.ways.way import STRATEGIES, Exact, KerasFails, Refused, Verdict, Warned, Way  # noqa: E402

#: The tables in their order: a heading, and the modules of the catalogue that it is made of.
TABLES = {
    "Input": ("basics", "inputs_tfdata", "shared_shuffles", "inputs_augmented", "inputs_python"),
    "Models": ("models", "structures", "optimizers"),
    "Fits": ("fits", "several_fits", "tuning"),
    "Callbacks beside ours": ("callbacks",),
}


def ways(modules: tuple[str, ...]) -> list[Way]:
    """Returns the ways of some modules of the catalogue."""
    return [way for name in modules for way in importlib.import_module(f"tests.ways.catalogue.{name}").WAYS]


#: The headings of the columns, which have to be narrow; the page explains them.
COLUMNS = dict(zip(STRATEGIES, ("one device", "Mirrored", "2 workers"), strict=True))


def cell(verdict: Verdict | None, notes: Notes) -> str:
    """Says a verdict in the words of the table."""
    if verdict is None:
        return "-"
    if isinstance(verdict, Exact):
        return notes.cell("exact", None if verdict.condition is None else f"if {verdict.condition}")
    if isinstance(verdict, Warned):
        return notes.cell("not exact", verdict.reason)
    if isinstance(verdict, Refused):
        return notes.cell("refused", verdict.reason)
    assert isinstance(verdict, KerasFails)
    return notes.cell("Keras fails", verdict.reason)


def cell_on_jax(way: Way, notes: Notes) -> str:
    """Says in the words of the table what is promised for a way on JAX."""
    verdict = verdict_of(way)
    if isinstance(verdict, NotOnJax):
        return notes.cell("not on JAX", verdict.reason)
    return "not drilled" if way.name in NOT_DRILLED else cell(verdict, notes)


def tables() -> str:
    """Returns all tables as Markdown."""
    parts = []
    for heading, modules in TABLES.items():
        notes = Notes()
        lines = [f"## {heading}", "", f"| | {' | '.join(COLUMNS.values())} | JAX |", "|---" * 5 + "|"]
        for way in ways(modules):
            cells = [way.shown, *(cell(way.verdicts.get(each), notes) for each in STRATEGIES)]
            cells.append(cell_on_jax(way, notes))
            lines.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
        parts.append("\n".join([*lines, "", str(notes)]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main(__file__, "tested-combinations.md", "tests/ways/catalogue", tables))
