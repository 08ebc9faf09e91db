"""Compares what pages show as output with what is really printed and written.

A page shows one run, and a test makes another: a number, time or size matches any other, and a line `...` any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import Block, all_blocks

#: The tests that make the output shown on pages and compare it, by the name in the comment above a block.
SHOWN_BY = {
    "Ctrl-C": "tests/cluster/test_ctrl_c.py",
    "digits drill": "tests/test_example.py",
    "first page": "tests/docs/test_trained.py",
    "watched run": "tests/cli/test_watch.py",
    "platform line": "tests/notices/test_detection.py",
}

# In this order. A time is one, however many units it is told in; so are several in a row, as in a table.
_ANY = [
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\d\d:\d\d(:\d\d)?", "CLOCK"),
    (r"DATE CLOCK", "CLOCK"),
    (r"\d+(ms|us|s)/step", "TIME/step"),
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"-?\d[\d,.]*\d*( ?(kB|MB|GB)\b| bytes\b)", "SIZE"),
    (r"-?\d[\d.]*( ?(ms|us|s|min|h)\b)( ?-?\d[\d.]*( ?(ms|us|s|min|h)\b))*", "TIME"),
    (r"\d+(?:[.,]\d+)*", "#"),
    (r"\b(preemption|tensor|step|folder|start)s\b", r"\1"),
    (r"(w# at step #)(, w# at step #)+", r"\1"),
    (r"\s+", " "),
]


def plain(line: str) -> str:
    """A line with all that may be another in another run put in one form."""
    for pattern, form in _ANY:
        line = re.sub(pattern, form, line)
    return line.strip()


def assert_lines(block: Block, output: str, *, in_order: bool) -> None:
    """Asserts that every line of a block is one of the output.

    Args:
        block: What the page shows.
        output: What was printed.
        in_order: Whether in the same order. Those that are alike, as rows of a table, need not be as many.
    """
    # The end of the line after a question is typed by whoever answers.
    real = [plain(line) for line in output.replace("[y/N]: ", "[y/N]:\n").splitlines()]
    at = 0
    for line in block.code.splitlines():
        if line.strip() in ("", "..."):
            continue
        wanted = plain(line)
        found = [number for number, each in enumerate(real) if each == wanted and number >= at]
        where = f"{block.where} shows a line that was not printed{' there' if at else ''}"
        assert found, f"{where}: {line}\n{output}"
        at = found[0] if in_order else 0


def assert_shown(name: str, output: str) -> None:
    """Asserts that what pages show as lines of this output are lines of it; several processes write them."""
    shown = [block for block in all_blocks() if block.notes.get("output of") == name]
    assert shown, f"no page shows the output of {name!r}"
    for block in shown:
        assert_lines(block, output, in_order=False)


def assert_shown_after(name: str, directory: Path, command: Callable[[list[str]], str]) -> None:
    """Asserts that pages show a run's directory as it is.

    Args:
        name: What the comments above the blocks say.
        directory: The run's directory. It must be where the commands on the pages look for it.
        command: Runs a command of the command line, given by its words; returns what it prints.
    """
    shown = [block for block in all_blocks() if block.notes.get("shown after") == name]
    assert shown, f"no page shows anything after {name!r}"
    for block in shown:
        first, _, rest = block.code.partition("\n")
        if first.startswith("$ keras-preempt "):
            output = command(shlex.split(first)[2:])
            assert_lines(Block(block.where, "", rest, {}), output, in_order=True)
        else:
            assert_listing(block, directory)


def assert_listing(block: Block, directory: Path) -> None:
    """Asserts that a tree of files, as `tree` draws it, names the files of a directory and no others."""
    found = {plain(str(path.relative_to(directory))) for path in directory.rglob("*") if path.is_file()}
    shown, folders, elided = set(), [], set()
    for line in block.code.splitlines()[1:]:
        drawn = re.fullmatch(r"((?:│   |    )*)(?:├── |└── )(\S+).*", line)
        assert drawn, f"{block.where}: not a line of a tree: {line}"
        folders = folders[: len(drawn[1]) // 4]
        path = "".join([*folders, drawn[2]])
        if drawn[2] == "...":
            elided.add(plain("".join(folders)))
        elif path.endswith("/"):
            folders.append(drawn[2])
        else:
            shown.add(plain(path))
    assert shown <= found, f"{block.where} shows files that are not there: {shown - found}"
    more = {path for path in found - shown if not path.startswith(tuple(elided))}
    assert not more, f"{block.where} does not show {more}"
