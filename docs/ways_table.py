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


def words(verdict: Verdict | None) -> str:
    """Says a verdict in the words of the table."""
    if verdict is None:
        return "-"
    if isinstance(verdict, Exact):
        return "exact" if verdict.condition is None else f"exact if {verdict.condition}"
    if isinstance(verdict, Warned):
        return f"not exact, and says so: {verdict.reason}"
    if isinstance(verdict, Refused):
        return f"refused: {verdict.reason}"
    assert isinstance(verdict, KerasFails)
    return f"Keras itself fails: {verdict.reason}"


def words_on_jax(way: Way) -> str:
    """Says in the words of the table what is promised for a way on JAX."""
    verdict = verdict_of(way)
    if isinstance(verdict, NotOnJax):
        return f"not on JAX: {verdict.reason}"
    return "not drilled" if way.name in NOT_DRILLED else words(verdict)


def tables() -> str:
    """Returns all tables as Markdown."""
    parts = []
    for heading, modules in TABLES.items():
        lines = [
            f"## {heading}",
            "",
            "| | " + " | ".join(STRATEGIES.values()) + " | JAX, one device |",
            "|---" * 5 + "|",
        ]
        for way in ways(modules):
            cells = [way.shown, *(words(way.verdicts.get(each)) for each in STRATEGIES), words_on_jax(way)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main(__file__, "tested-combinations.md", "tests/ways/catalogue", tables))
