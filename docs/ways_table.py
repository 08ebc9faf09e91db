"""Writes the tables in docs/guarantees.md from the catalogue of ways to train, `tests/ways/catalogue`.

Each row is a test: what is promised is what is held. Run `python docs/ways_table.py` after changing the catalogue;
with `--check` nothing is written, and the exit status is 1 if the page is not what the catalogue gives.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.ways.way import STRATEGIES, Exact, KerasFails, Refused, Verdict, Warned, Way  # noqa: E402

PAGE = Path(__file__).with_name("guarantees.md")
BEGIN = "<!-- ways: written by docs/ways_table.py from tests/ways/catalogue; do not edit -->"
END = "<!-- ways: end -->"

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


def tables() -> str:
    """Returns all tables as Markdown."""
    parts = []
    for heading, modules in TABLES.items():
        lines = [f"### {heading}", "", "| | " + " | ".join(STRATEGIES.values()) + " |", "|---" * 4 + "|"]
        for way in ways(modules):
            cells = [words(way.verdicts.get(strategy)).replace("|", "\\|") for strategy in STRATEGIES]
            lines.append(f"| {way.shown.replace('|', chr(92) + '|')} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def page(present: str) -> str:
    """Returns the page with the tables between the two marks."""
    before, begin, rest = present.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(
            f"Expected the lines {BEGIN!r} and {END!r} in {PAGE}. Received: a page without them."
        )
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Writes the page, or compares it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare the page with the catalogue")
    present = PAGE.read_text(encoding="utf-8")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(present), encoding="utf-8")
        return 0
    if present == page(present):
        return 0
    print(f"{PAGE.name} is not what the catalogue gives: run python docs/ways_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
