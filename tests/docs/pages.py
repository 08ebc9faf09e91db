"""The pages of the documentation and the blocks of code in them, and the comments above each block.

A comment directly above a block is not shown to readers, and tells `test_blocks` how it is run::

    <!-- with: model, bucket -->             the surroundings of the code or command: see `preparations`
    <!-- file: train.py -->                  the code is this file, which commands and drills run
    <!-- processes on jax: 2 -->            the code is a script, run on JAX in so many processes of one job
    <!-- exit status: 137 -->                the exit status of the commands, if it is not 0
    <!-- not run: needs a cluster -->        commands that cannot be run here, and why
    <!-- serves: http://127.0.0.1:... -->    a program that runs until it is stopped, and its first line
    <!-- tried by: tests/... -->             settings for a service; a test reads them from the page, and tries them
    <!-- output of: digits drill -->         lines of what a test prints: see `shown`
    <!-- shown after: digits drill -->       a command with its output, or a listing of the directory
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "figures.md",
    *sorted((ROOT / "examples").glob("*/README.md")),  # The site has them, too: pages link to them.
]

NOTES = (
    "with",
    "file",
    "processes on jax",
    "exit status",
    "not run",
    "serves",
    "tried by",
    "output of",
    "shown after",
    "figures of",
)

SKIPPED = "not installed: "
"""How a block is marked that was not run, since the package that it shows is not installed."""

_BLOCK = re.compile(
    r"^(?P<notes>(?:<!--.*-->\n)*)(?P<fence>```+|~~~+)(?P<language>.*)\n(?P<code>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.MULTILINE,
)
_NOTE = re.compile(r"<!-- ([a-z ]+): (.*) -->\n")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        where: Page and line of its fence: "index.md:20", or "examples/gce/README.md:3".
        language: As the fence says; empty if it says nothing.
        code: What stands in it, each line with its end.
        notes: What the comments above it say, by name.
    """

    where: str
    language: str
    code: str
    notes: dict[str, str]

    @property
    def names(self) -> list[str]:
        """The preparations that it asks for."""
        return [name.strip() for name in self.notes.get("with", "").split(",") if name.strip()]


def blocks_of(page: str, text: str) -> list[Block]:
    """Every block of a page, in order."""
    return [
        Block(
            f"{page}:{text[: found.start('fence')].count(chr(10)) + 1}",
            found["language"].strip(),
            found["code"],
            dict(_NOTE.findall(found["notes"])),
        )
        for found in _BLOCK.finditer(text)
    ]


def all_blocks() -> list[Block]:
    """Every block of every page."""
    return [block for page in PAGES for block in blocks_of(name_of(page), page.read_text())]


def name_of(page: Path) -> str:
    """A page's name, with its folder if that is not docs/."""
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def program(path: str) -> ModuleType:
    """A program of the documentation or of the build, loaded as a module; those in docs/ import each other."""
    file = ROOT / path
    with mock.patch.object(sys, "path", [str(file.parent), *sys.path]):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def files() -> dict[str, str]:
    """The files that pages give the code of, by name."""
    return {block.notes["file"]: block.code for block in all_blocks() if "file" in block.notes}
