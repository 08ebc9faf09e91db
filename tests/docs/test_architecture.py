"""docs/architecture.md says what is so: its functions exist, and a real fit enters them in its order."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.harness import run_cluster
from tests.docs.pages import ROOT

PACKAGE = ROOT / "keras_preempt"
PAGE = ROOT / "docs" / "architecture.md"
SCRIPT = Path(__file__).with_name("traced_fit.py")
MAIN = "main"

SIGTERM, SAVED, RESTORED = "From a SIGTERM to the manifest", "From a tensor to the file", "And back"
MOST_ENTRIES = 2

_NAMED = re.compile(r"`([\w/]+\.py)` `([\w.<>]+)`")
_ROW = re.compile(rf"^\| (\w+) \| {_NAMED.pattern} \|", re.MULTILINE)


@dataclass(frozen=True)
class Station:
    """A row of a table of the page: a function that the way passes.

    Attributes:
        thread: The thread that calls it, as the page says.
        file: Its file, in the package.
        name: Its qualified name.
    """

    thread: str
    file: str
    name: str

    @property
    def place(self) -> tuple[str, int]:
        """The path of its file and its first line, as its code object has them."""
        return str(PACKAGE / self.file), functions_of(self.file)[self.name]


def functions_of(file: str) -> dict[str, int]:
    """The functions of a module by qualified name, each with its first line, that of a decorator included."""
    found: dict[str, int] = {}

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                found[prefix + child.name] = min(each.lineno for each in (child, *child.decorator_list))
                look(child, f"{prefix}{child.name}.<locals>.")
            else:
                look(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    look(ast.parse((PACKAGE / file).read_text()), "")
    return found


def names_of(file: str) -> set[str]:
    """Everything that a module defines: functions, classes and variables at its top level."""
    tree = ast.parse((PACKAGE / file).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names | set(functions_of(file))


def section(heading: str) -> str:
    """The text below a heading of the page."""
    return PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def way(heading: str) -> list[Station]:
    """The stations of the way that the page describes under a heading."""
    stations = [Station(*found) for found in _ROW.findall(section(heading))]
    assert len(stations) > 5, f"no way under {heading!r}"
    return stations


@dataclass(frozen=True)
class Call:
    """A recorded call: the function's file and first line, the file that called it, if any, and in which thread."""

    file: str
    line: int
    caller: str
    in_main: bool


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    """What a preempted fit enters after its SIGTERM, and what the fit that resumes it enters."""
    folder = tmp_path_factory.mktemp("traced")
    heard = [station for station in way(SIGTERM) if station.thread != MAIN][-1]
    found = {}
    for name, headings, strike, status in (
        ("preempted", (SIGTERM, SAVED), [":".join(map(str, heard.place))], 75),
        ("resumed", (RESTORED,), [], 0),
    ):
        watched, result = folder / f"{name}-watched.json", folder / f"{name}.json"
        watched.write_text(json.dumps([station.place for heading in headings for station in way(heading)]))
        arguments = [str(folder / "run"), str(watched), str(result), *strike]
        env = {"PYTHONPATH": str(ROOT)}
        run_cluster(SCRIPT, 1, args=arguments, env=env, timeout=200, cwd=folder).assert_codes(status)
        found[name] = [Call(*each) for each in json.loads(result.read_text())]
    return found


def of(stations: Sequence[Station], calls: Sequence[Call]) -> list[tuple[Station, Call]]:
    """The first call of each station, in the order of the calls."""
    by_place = {station.place: station for station in stations}
    first: dict[Station, Call] = {}
    for call in calls:
        station = by_place.get((call.file, call.line))
        if station is not None and call.in_main == (station.thread == MAIN):
            first.setdefault(station, call)
    return list(first.items())


@pytest.mark.parametrize(
    ("run", "heading"), [("preempted", SIGTERM), ("preempted", SAVED), ("resumed", RESTORED)]
)
def test_a_fit_passes_the_functions_of_the_page_in_its_order_without_a_gap(
    run: str, heading: str, recorded: dict[str, list[Call]]
) -> None:
    """Each function is called by a module that the page has named before, or by a thread, or by Keras."""
    stations = way(heading)
    passed = of(stations, recorded[run])
    assert [station for station, _ in passed] == stations
    seen: set[str] = set()
    for number, (station, call) in enumerate(passed):
        caller = call.caller.removeprefix(f"{PACKAGE}/")
        assert not caller or not number or caller in {*seen, station.file}, f"{caller} calls {station}"
        seen.add(station.file)


def test_from_sigterm_to_the_manifest_each_part_is_entered_at_most_twice(
    recorded: dict[str, list[Call]],
) -> None:
    """A part is a module; what it calls of itself does not count."""
    called = of(way(SIGTERM), recorded["preempted"])
    files = [station.file for station, call in called if call.caller != call.file]
    entries = [file for file, _ in itertools.groupby(files)]
    assert max(map(entries.count, entries)) <= MOST_ENTRIES, entries


def test_from_sigterm_to_the_manifest_each_function_is_called_once(recorded: dict[str, list[Call]]) -> None:
    stations = way(SIGTERM)
    calls = [(call.file, call.line) for call in recorded["preempted"]]
    calls = calls[: calls.index(stations[-1].place) + 1]  # Leaving is another story.
    assert [station for station in stations if calls.count(station.place) != 1] == []


def test_every_file_function_and_class_that_the_page_names_is_where_the_page_says() -> None:
    page = PAGE.read_text()
    for file in re.findall(r"`([\w/]+\.py)`", page):
        assert (PACKAGE / file).is_file() or (ROOT / file).is_file(), file
    named = _NAMED.findall(page)
    assert len(named) > 20
    for file, name in named:
        assert name in names_of(file), f"{name} is not in {file}"
