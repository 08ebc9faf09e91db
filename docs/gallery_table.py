"""Writes the tables in docs/gallery.md from the catalogue of the gallery and from what its drills came to.

Each row is a test: `tests/gallery`. Run `python docs/gallery_table.py` after `python -m tests.gallery --write`; with
`--check` nothing is written, and the exit status is 1 if the page is not what the records give.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.gallery import records  # noqa: E402
from tests.gallery.catalogue import FOLDERS, SCRIPTS, Identical, Script  # noqa: E402

PAGE = Path(__file__).with_name("gallery.md")
BEGIN = "<!-- gallery: written by docs/gallery_table.py from tests/gallery; do not edit -->"
END = "<!-- gallery: end -->"

#: What each line of the log begins with.
EVERY_LINE = "Watching over 1 worker(s) in DIRECTORY. "


def row(script: Script, seen: records.Record | None) -> str:
    """Returns the row of one script."""
    verdict = "not drilled" if seen is None else seen["verdict"]
    if verdict == "different":
        verdict = "not exact, and says so"
    said = "" if seen is None else "<br>".join(line.removeprefix(EVERY_LINE) for line in seen["said"])
    cells = [f"`{script.path.name}`", script.shown, verdict, said]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables() -> str:
    """Returns the summary and all tables as Markdown."""
    seen = records.load()
    identical = sum(isinstance(script.verdict, Identical) for script in SCRIPTS)
    parts = [
        f"{len(SCRIPTS)} scripts: {identical} identical, {len(SCRIPTS) - identical} not exact, which the log says "
        "before the first step."
    ]
    for folder, heading in FOLDERS.items():
        lines = [
            f"### {heading}",
            "",
            "| script | what is in it | verdict | what the log said before |",
            "|---" * 4 + "|",
        ]
        lines += [row(s, seen.get(s.name)) for s in SCRIPTS if s.name.startswith(f"{folder}/")]
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
    parser.add_argument("--check", action="store_true", help="only compare the page with the records")
    present = PAGE.read_text(encoding="utf-8")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(present), encoding="utf-8")
        return 0
    if present == page(present):
        return 0
    print(f"{PAGE.name} is not what the records give: run python docs/gallery_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
