"""Parts of pages that a program writes: they stand between two comments, and `--check` compares them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def replaced(page: Path, begin: str, end: str, content: str) -> str:
    """Returns the text of a page with other content between two lines.

    Raises:
        SystemExit: The page does not have these lines.
    """
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(
            f"Expected the lines {begin!r} and {end!r} in {page}. Received: a page without them."
        )
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def main(
    script: str, page: str, source: str, content: Callable[[], str], arguments: Sequence[str] | None = None
) -> int:
    """Writes the generated part of a page, or compares it.

    Args:
        script: The program, as its `__file__`. The page is beside it.
        page: The file name of the page. The comments around the part begin with this name, without ".md".
        source: What the part is made from, as the first comment says it.
        content: Returns the part as Markdown.
        arguments: The command line; by default that of the process.

    Returns:
        The exit status: 1 if `--check` found something else on the page.
    """
    parser = argparse.ArgumentParser(description=f"Writes the generated part of docs/{page}, from {source}.")
    parser.add_argument(
        "--check", action="store_true", help="only compare the page; exit with 1 if it differs"
    )
    check = parser.parse_args(arguments).check
    path = Path(script).with_name(page)
    name, program = path.stem, f"docs/{Path(script).name}"
    begin = f"<!-- {name}: written by {program} from {source}; do not edit -->"
    text = replaced(path, begin, f"<!-- {name}: end -->", content())
    if not check:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        print(f"docs/{page} is stale: run python {program}", file=sys.stderr)
        return 1
    return 0
