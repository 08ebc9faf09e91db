"""Writes the tables in docs/tested-combinations.md from the catalogue of ways to train, `tests/ways/catalogue`.

Each row is a test in `tests/ways`. Run `python docs/ways_table.py` after changing the catalogue.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from string import ascii_uppercase

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from generated import main  # noqa: E402

from tests.ways.on_jax import NOT_DRILLED, NotOnJax, verdict_of  # noqa: E402
from tests.ways.way import STRATEGIES, Exact, KerasFails, Refused, Warned, Way  # noqa: E402

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


#: What a way is called that differs from the one before it.
SAME = "the same "

#: What is trained on, in the words of the table; docs/filter.js has the same.
COLUMNS = (*zip(STRATEGIES, ("1", "M", "W"), strict=True), (None, "J"))


def verdict_on(way: Way, strategy: str | None) -> tuple[str, str | None]:
    """Returns the verdict in the words of the table, and its condition or reason; for None, that on JAX."""
    verdict = verdict_of(way) if strategy is None else way.verdicts.get(strategy)
    if isinstance(verdict, NotOnJax):
        return "not run", verdict.reason
    if verdict is None or (strategy is None and way.name in NOT_DRILLED):
        return "-", None
    if isinstance(verdict, Exact):
        return ("exact", None) if verdict.condition is None else ("exact if", f"if {verdict.condition}")
    for kind, word in ((Warned, "not exact"), (Refused, "refused"), (KerasFails, "Keras fails")):
        if isinstance(verdict, kind):
            return word, verdict.reason
    raise TypeError(f"Expected a verdict. Received: {verdict!r}.")


@dataclass(frozen=True)
class Row:
    """What is trained, the verdict with the columns that differ from the others, and why."""

    shown: str
    verdict: str
    reasons: tuple[str, ...]

    def line(self, letters: Mapping[str, str]) -> str:
        """Returns the row: a reason of several rows is a letter of the legend."""
        coded = [f"[{letters[each]}](#legend)" for each in self.reasons if each in letters]
        own = [each for each in self.reasons if each not in letters]
        cells = [self.shown, self.verdict, " ".join(filter(None, [", ".join(coded), *own]))]
        return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def row(way: Way) -> Row:
    """Returns the row of a way."""
    columns: dict[str, list[str]] = {}
    reasons: dict[str, None] = {}
    for strategy, column in COLUMNS:
        word, reason = verdict_on(way, strategy)
        if word != "-":
            columns.setdefault(word, []).append(column)
        if reason is not None:
            reasons[f"{reason[0].upper()}{reason[1:]}."] = None
    run = sum(map(len, columns.values()))
    named = sorted(columns.items(), key=lambda each: -len(each[1]))
    most, where = named[0]
    if run == len(COLUMNS) and len(where) > run / 2:
        parts = [most, *(f"{', '.join(where)}: {word}" for word, where in named[1:])]
    else:
        parts = [f"{', '.join(where)}: {word}" for word, where in named if word != "not run"]
    return Row(way.shown, "; ".join(parts), tuple(reasons))


def merged(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows; several in a row that are "the same" as one before in some other way are one."""
    found: list[Row] = []
    for each in rows:
        last = found[-1] if found else each
        alike = (each.verdict, each.reasons) == (last.verdict, last.reasons)
        if alike and each.shown.startswith(SAME) and last.shown.startswith(SAME):
            found[-1] = replace(last, shown=f"{last.shown}; {each.shown.removeprefix(SAME)}")
        else:
            found.append(each)
    return found


def tables() -> str:
    """Returns for each heading a list of what is exact everywhere and a table of the rest; then the legend."""
    rows = {heading: merged(map(row, ways(modules))) for heading, modules in TABLES.items()}
    used = Counter(reason for each in chain(*rows.values()) for reason in each.reasons)
    letters = dict(
        zip((reason for reason, times in used.items() if times > 1), ascii_uppercase, strict=False)
    )
    parts = []
    for heading, found in rows.items():
        listed = [f"- {each.shown}" for each in found if each.verdict == "exact"]
        rest = [each.line(letters) for each in found if each.verdict != "exact"]
        table = ["| trained | verdict | condition or reason |", "|---|---|---|", *rest]
        parts.append("\n".join([f"## {heading}", "", *listed, "", *table]))
    legend = [f"- **{letter}**: {reason}" for reason, letter in letters.items()]
    return "\n\n".join([*parts, "## Legend", "\n".join(legend)])


if __name__ == "__main__":
    sys.exit(main(__file__, "tested-combinations.md", "tests/ways/catalogue", tables))
