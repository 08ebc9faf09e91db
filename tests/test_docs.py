"""The documentation is true where a machine can tell: code runs, links lead somewhere, names and messages exist."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt import environment, events, failpoints
from tests.cluster.harness import QUIET_CPU

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^(<!-- runnable -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PLACEHOLDER = "\0"

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(*, runnable_only: bool) -> list[tuple[str, str]]:
    """Python blocks of all pages as (where, code)."""
    return [
        (f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}", match[2])
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
        if match[1] or not runnable_only
    ]


def table(page: str, heading: str) -> set[str]:
    """The names in the first column of the table that begins with `| heading |`."""
    lines = (ROOT / page).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    names = set()
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        names.add(line.split("|")[1].strip().strip("`"))
    return names


def text_of_code() -> list[str]:
    """Every string in the package's code, with one placeholder for each value that is put into it."""
    strings = []
    for file in sorted((ROOT / "keras_preempt").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else _PLACEHOLDER for part in node.values
                ]
                strings.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(re.sub(r"%[sd]|%\.\d+f", _PLACEHOLDER, node.value))
    return strings


def message_pattern(message: str) -> re.Pattern[str]:
    """Finds a quoted message: `...` stands for anything, a number also for a value that is put in."""
    pattern = ""
    for piece in re.split(r"(\.\.\.|\d+(?:\.\d+)*)", message):
        if piece == "...":
            pattern += ".*"
        elif piece[:1].isdigit():
            pattern += f"(?:{re.escape(piece)}|{_PLACEHOLDER})"
        else:
            pattern += re.escape(piece)
    return re.compile(pattern, re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_python_block_compiles():
    found = blocks(runnable_only=False)
    assert found
    for where, code in found:
        compile(code, where, "exec")


def test_every_runnable_block_runs(tmp_path):
    found = blocks(runnable_only=True)
    assert found
    program = (
        "import json, sys\n"
        "for where, code in json.load(sys.stdin):\n"
        "    print('running', where, flush=True)\n"
        "    exec(compile(code, where, 'exec'), {'__name__': '__main__'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(found),
        env={**os.environ, **QUIET_CPU},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("running ") == len(found)


@pages
def test_every_link_between_pages_leads_somewhere(page):
    for link in _LINK.findall(page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_environment_page_names_exactly_the_variables_that_are_read():
    read = {getattr(environment, name) for name in environment.__all__} | {failpoints.VARIABLE}
    assert table("docs/environment.md", "variable") == read


@pages
def test_no_page_names_a_variable_that_is_not_read(page):
    read = {getattr(environment, name) for name in environment.__all__} | {failpoints.VARIABLE}
    assert set(re.findall(r"\bKERAS_PREEMPT_[A-Z_]+\b", page.read_text())) <= read


def test_failpoints_and_actions_on_the_page_are_those_of_the_code():
    assert table("docs/environment.md", "point") == set(failpoints.NAMES)
    with pytest.raises(ValueError, match="an action out of") as error:
        failpoints.parse(f"{failpoints.NAMES[0]}=no-such-action")
    known = re.search(r"an action out of (.*?)\.", str(error.value))
    assert known is not None
    assert table("docs/environment.md", "action") == set(known[1].split(", "))


def test_events_on_the_page_are_those_of_the_code():
    assert table("docs/how-it-works.md", "event") == set(events.KINDS)


def test_every_message_in_troubleshooting_exists_in_the_code():
    messages = re.findall(r'\*\*"([^*]*?)"\*\*', (ROOT / "docs" / "troubleshooting.md").read_text())
    assert len(messages) > 20
    strings = text_of_code()
    for message in messages:
        pattern = message_pattern(" ".join(message.split()))
        assert any(pattern.search(text) for text in strings), f"no code says {message!r}"


def test_every_make_target_that_is_mentioned_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} mentions make {target}"
