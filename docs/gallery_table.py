"""Writes the tables in docs/gallery.md from the catalogue of the gallery and the results of its drills.

Each row is a test in `tests/gallery`. Run `python docs/gallery_table.py` after `python -m tests.gallery --write`, and
after the same with `--jax`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from generated import main  # noqa: E402

from tests.gallery.catalogue import FOLDERS, SCRIPTS, Identical, Script  # noqa: E402
from tests.gallery.drilled import Record, load_records  # noqa: E402
from tests.gallery.on_jax import NOT_ON_JAX  # noqa: E402

#: What each line of the log begins with.
EVERY_LINE = "Watching over 1 worker in DIRECTORY. "

#: Callbacks of one script, in a sentence that the log says of several.
_OWN_CALLBACKS = re.compile(r"(?<=not kept over a restart: )[\w, ():]+(?=\. Give them)")


class Legend:
    """Letters for the sentences of a column, in the order of their first use."""

    def __init__(self, first: str) -> None:
        self._first = ord(first)
        self._letters: dict[str, str] = {}

    def letter(self, sentence: str) -> str:
        """Returns the letter of a sentence."""
        return self._letters.setdefault(sentence, chr(self._first + len(self._letters)))

    def __str__(self) -> str:
        return "\n".join(f"- **{letter}**: {sentence}" for sentence, letter in self._letters.items())


def words(seen: Record | None) -> str:
    """Returns a verdict in the words of the table."""
    if seen is None:
        return "not drilled"
    return "not exact" if seen["verdict"] == "different" else seen["verdict"]


def said(line: str) -> str:
    """Returns what the log said of a script, as it may have said it of others."""
    told = _OWN_CALLBACKS.sub("(their names)", line.removeprefix(EVERY_LINE))
    told = told.removeprefix("After a preemption: ").removeprefix("NOT exact after a preemption: ")
    told = told.partition(". ")[0].removesuffix(".")  # The cure follows.
    told = re.sub(r" \((in|such as tf).*\)", "", told)  # Places in the code of one script.
    return re.sub(r"[*_]", r"\\\g<0>", told)  # They would be Markdown.


def row(
    script: Script, seen: Record | None, on_jax: Record | None, log: Mapping[str, Legend], jax: Legend
) -> str:
    """Returns the row of one script: its verdict is the part of the legend in which its capital letter stands."""
    verdict = words(seen)
    letters = [] if seen is None else [log[verdict].letter(said(line)) for line in seen["said"]]
    why_not = NOT_ON_JAX.get(script.name)
    if why_not is not None:
        letters.append(jax.letter(why_not))
    elif words(on_jax) != verdict:
        letters.append(jax.letter(f"it is {words(on_jax)} there"))
    cells = [f"`{script.path.name}`", script.shown, ", ".join(letters)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables() -> str:
    """Returns the summary and all tables as Markdown."""
    seen, there = load_records(), load_records("jax")
    identical = sum(isinstance(script.verdict, Identical) for script in SCRIPTS)
    log = {"identical": Legend("A"), "not exact": Legend("N"), "not drilled": Legend("Z")}
    parts, jax = [], Legend("a")
    for folder, heading in FOLDERS.items():
        lines = [
            f"### {heading}",
            "",
            "| script | what is in it | result |",
            "|---" * 3 + "|",
        ]
        lines += [
            row(s, seen.get(s.name), there.get(s.name), log, jax)
            for s in SCRIPTS
            if s.name.startswith(f"{folder}/")
        ]
        parts.append("\n".join(lines))
    summary = (
        f"{len(SCRIPTS)} scripts: {identical} identical, {len(SCRIPTS) - identical} not exact, which the log says "
        "before the first step."
    )
    legends = (
        f"Identical. The log said:\n\n{log['identical']}\n\nNot exact. The log said:\n\n{log['not exact']}\n\n"
        f"On JAX the result is the same, except with a small letter:\n\n{jax}"
    )
    return "\n\n".join([summary, "### Legend", legends, *parts])


if __name__ == "__main__":
    sys.exit(main(__file__, "gallery.md", "tests/gallery", tables))
