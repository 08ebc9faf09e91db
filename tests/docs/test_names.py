"""Everything that the documentation names or links to exists, and what is public is named.

That is variables, failpoints, events, messages, options, files, targets, and what links lead to.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

import keras_preempt
from keras_preempt import cluster, notices, testing
from keras_preempt.checkpoint import failpoints
from keras_preempt.cli.main import cli
from keras_preempt.process import environment
from keras_preempt.report import events
from tests.docs.pages import PAGES, ROOT, name_of

_PLACEHOLDER = "\0"
_LINK = re.compile(r"""\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


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
                parts = [getattr(part, "value", "") for part in node.values]
                strings.append("".join(part if isinstance(part, str) else _PLACEHOLDER for part in parts))
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


VARIABLES = {value for name, value in vars(environment).items() if name.isupper()} | {failpoints.VARIABLE}


def test_environment_page_names_exactly_the_variables_that_are_read() -> None:
    assert table("docs/environment.md", "variable") == VARIABLES


@pages
def test_no_page_names_a_variable_that_is_not_read(page: Path) -> None:
    assert set(re.findall(r"\bKERAS_PREEMPT_[A-Z_]+\b", page.read_text())) <= VARIABLES


def test_failpoints_and_actions_on_the_page_are_those_of_the_code() -> None:
    assert table("CONTRIBUTING.md", "point") == set(failpoints.NAMES)
    with pytest.raises(ValueError, match="an action out of") as error:
        failpoints.parse_failpoints(f"{failpoints.NAMES[0]}=no-such-action")
    known = re.search(r"an action out of (.*?)\.", str(error.value))
    assert known is not None
    assert table("CONTRIBUTING.md", "action") == set(known[1].split(", "))


def test_events_on_the_page_are_those_of_the_code() -> None:
    listed = re.findall(r"^- \*\*(\w+)\*\*", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(events.KINDS)


def test_every_message_in_troubleshooting_exists_in_the_code() -> None:
    messages = re.findall(r'\*\*"([^*]*?)"\*\*', (ROOT / "docs" / "troubleshooting.md").read_text())
    assert len(messages) > 20
    strings = text_of_code()
    for message in messages:
        pattern = message_pattern(" ".join(message.split()))
        assert any(pattern.search(text) for text in strings), f"no code says {message!r}"


def test_every_make_target_that_is_mentioned_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            mentioned = f"{name_of(page)} mentions make {target}"
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), mentioned


@pages
def test_every_file_of_the_repository_that_is_named_exists(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text())  # Links are looked at below.
    for name in re.findall(r"\b(?:tests|benchmarks|examples|docs|keras_preempt)/[\w/.-]+\.\w+", text):
        assert (ROOT / name).is_file(), f"{name_of(page)} names {name}"


@pages
def test_every_name_of_the_package_on_a_page_exists(page: Path) -> None:
    for dotted in re.findall(r"\bkeras_preempt(?:\.\w+)+", page.read_text()):
        place, left = ROOT / "keras_preempt", dotted.split(".")[1:]
        while left and (place / left[0]).is_dir():
            place /= left.pop(0)
        if left and (place / f"{left[0]}.py").is_file():
            place /= f"{left.pop(0)}.py"
        elif place.is_dir():
            place /= "__init__.py"
        if left:
            assert re.search(rf"\b{left[0]}\b", place.read_text()), f"{name_of(page)} names {dotted}"


@pytest.mark.parametrize("page", ["index.md", "drill.md", "commands.md", "report.md"])
def test_every_option_on_the_pages_of_the_commands_exists(page: str) -> None:
    known = {"--help"}
    for command in cli.list_commands(click.Context(cli)):
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        known.update(*(parameter.opts + parameter.secondary_opts for parameter in found.params))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", (ROOT / "docs" / page).read_text())) <= known


def test_every_page_and_section_that_the_code_refers_to_exists() -> None:
    """In docstrings, which users read in an editor, and in messages: "Section" in docs/page.md."""
    sections = set()
    for file in ROOT.glob("keras_preempt/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = " ".join(node.value.split())
                for section, page in re.findall(r'(?:"([^"]+)" (?:in|of) )?\b(docs/[\w/-]+\.md)', text):
                    assert (ROOT / page).is_file(), f"{file.name} refers to {page}"
                    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
                    assert not section or section in headings, f"{file.name} refers to {section!r} in {page}"
                    sections.add(section)
    assert sections >= {"Several fits", "Input pipelines"}


@pages
def test_prose_is_wrapped_at_120_characters(page: Path) -> None:
    """Where a browser wraps it: not in tables, quotations, code, links and what a program has written."""
    text = re.sub(r"^[ \t]*```[\s\S]*?\n[ \t]*```$", "", page.read_text(), flags=re.MULTILINE)
    text = re.sub(r"<!-- ([\w -]+): written by [\s\S]*?<!-- \1: end -->", "", text)
    prose = [line for line in text.splitlines() if not re.match(r"\s*[|<!>]|    ", line)]
    long = [line for line in prose if len(re.sub(r"\]\([^)]*\)", "]", line)) > 120]
    assert long == [], name_of(page)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for link in map("".join, _LINK.findall(page.read_text())):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}"


@pytest.mark.parametrize(
    "module", [keras_preempt, cluster, notices, testing], ids=lambda module: module.__name__
)
def test_every_public_name_is_on_a_page_of_the_api(module: ModuleType) -> None:
    listed = {
        word for page in (ROOT / "docs").glob("api*.md") for word in re.findall(r"\w+", page.read_text())
    }
    assert set(module.__all__) - {"__version__"} <= listed
