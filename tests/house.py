"""The order of the package's rooms, and its rules: found by reading the code, nothing is imported.

A *room* is a name in the package's root: a folder, or a module. `ROOMS` is the one place that says how they are
ordered; `tests/test_house.py` holds the package to it, and docs/architecture_table.py draws it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "keras_preempt"

#: From top to bottom: a room imports only those below it. Rooms of one line do not import each other.
ROOMS: dict[tuple[str, ...], str] = {
    ("cli",): "the commands",
    ("cluster",): "worker processes: start and restart them, describe them to TensorFlow and JAX",
    ("callback", "handler"): "the two entry points: `fit`, and custom training loops",
    ("drilled",): "what a drill does in a training process, behind one hook",
    ("training",): "one fit or loop in one process: begin, pass a boundary, save, leave",
    ("state",): "what training consists of, captured and restored",
    ("report",): "what happened: events, accounting, progress, TensorBoard, the page",
    ("notices",): "sources of preemption notices; the platform; what the user configured",
    ("backend",): "everything that knows the internals of Keras, TensorFlow, JAX and torch",
    ("agreement",): "the protocol by which workers stop at the same step, its messages, and the coordinator",
    ("checkpoint",): "the format on disk: write, commit, read, keep; `storage/`: a directory, a bucket",
    (
        "testing",
    ): "for tests of users: the drill as a function and a fixture; fakes of a bucket and of metadata servers",
    ("process",): "names of environment variables, exit statuses, this process and its log",
}

#: The floors of a room, from top to bottom: a module imports only what is on its own floor or below.
FLOORS: dict[str, tuple[str, ...]] = {"training": ("start", "run", "save", "leave")}

MOST_ROOMS = 14
MOST_LINES = 400
MOST_PARAMETERS = 7

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """A module that imports another one, anywhere in its code.

    Attributes:
        source: The module that imports, without the package's name: "training.run.fit". "" is the package itself.
        target: The module that is imported.
        line: The line in the source.
        by_name: Whether the source has only the name of the target, as a string.
    """

    source: str
    target: str
    line: int
    by_name: bool = False

    def __str__(self) -> str:
        return f"{self.source or '__init__'}, line {self.line}, imports {self.target or 'the package itself'}"


class House:
    """A package that is organized in rooms.

    Args:
        root: The folder of the package.
        rooms: The rooms from top to bottom, those of one level together, with what each holds.
    """

    def __init__(self, root: Path = PACKAGE, rooms: dict[tuple[str, ...], str] = ROOMS) -> None:
        self._root = root
        self._level = {name: level for level, names in enumerate(rooms) for name in names}

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Every module by its dotted name below the package; a folder's __init__ has the folder's name."""
        found = {}
        for path in sorted(self._root.rglob("*.py")):
            parts = path.relative_to(self._root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of one of the package's modules by another.

        Those in functions and under TYPE_CHECKING count, and so does a string that is the name of a module, as
        `importlib.import_module` and `python -m` take it.
        """
        found = set()
        for source, path in self.modules.items():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for target in self._targets(node, source, path.stem == "__init__"):
                    if target != source:
                        found.add(Import(source, target, node.lineno, isinstance(node, ast.Constant)))
        return sorted(found, key=lambda each: (each.source, each.line, each.target))

    def _targets(self, node: ast.AST, source: str, is_folder: bool) -> Iterator[str]:
        package = self._root.name
        if isinstance(node, ast.Import):
            yield from (self._module(each.name) for each in node.names if _within(each.name, package))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = [package, *filter(None, source.split("."))]
                base = ".".join([*here[: len(here) + is_folder - node.level], *filter(None, [node.module])])
            if _within(base, package):
                names = [each.name for each in node.names]
                yield from (self._module(f"{base}.{name}") for name in names if not _is_dunder(name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.removeprefix(f"{package}.")
            if name != node.value and name in self.modules:
                yield name

    def _module(self, dotted: str) -> str:
        """The longest part of a dotted name that is a module; the rest is a name in it."""
        parts = dotted.split(".")[1:]
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        return ".".join(parts)

    def pointing_up(self) -> list[str]:
        """The imports of a room that is not below the one that imports it."""
        return [str(each) for each in self.imports if not self._points_down(each)]

    def _points_down(self, each: Import) -> bool:
        source, target = room_of(each.source), room_of(each.target)
        if source in ("", "__main__"):  # The package's public names, and `python -m`: above all rooms.
            return True
        return source == target or self._level.get(source, -1) < self._level.get(target, -1)

    def climbing(self, floors: dict[str, tuple[str, ...]] = FLOORS) -> list[str]:
        """The imports within a room that lead to a floor above the one that imports it."""
        level = {f"{room}.{name}": at for room, names in floors.items() for at, name in enumerate(names)}
        found = []
        for each in self.imports:
            source, target = (".".join(module.split(".")[:2]) for module in (each.source, each.target))
            if source in level and target in level and level[source] > level[target]:
                found.append(str(each))
        return found

    def circle(self) -> list[str]:
        """Modules of which each imports the next, and the last the first; empty if there is no such circle.

        A module that has only the name of another one may be imported by it: so one is chosen of several that implement
        what it asks for.
        """
        graph: dict[str, set[str]] = {module: set() for module in self.modules}
        for each in self.imports:
            if not each.by_name:
                graph[each.source].add(each.target)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            return circle[::-1]
        return []

    def rooms(self) -> set[str]:
        """The names in the package's root, without those in double underscores and py.typed."""
        names = {room_of(module) for module in self.modules}
        others = {path.name for path in self._root.iterdir() if path.is_file() and path.suffix != ".py"}
        return {name for name in names | others if name and not _is_dunder(name)} - {"py.typed"}

    def long_files(self) -> list[str]:
        """The modules of more lines than a module may have, with their number of lines."""
        lines = {
            name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in self.modules.items()
        }
        return [f"{name}: {count} lines" for name, count in lines.items() if count > MOST_LINES]

    def long_signatures(self) -> list[str]:
        """The functions of more parameters than one may have, without self; those of the public API may."""
        found = []
        for module, node in self._definitions(FUNCTIONS):
            arguments = node.args
            names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > MOST_PARAMETERS:
                found.append(f"{module}.{node.name}: {count} parameters")
        return found

    def shared_names(self) -> dict[str, list[str]]:
        """The modules that define a class or a function of one name, where several do; private names aside."""
        places: dict[str, list[str]] = {}
        for module, path in self.modules.items():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module)
        return {name: modules for name, modules in places.items() if len(modules) > 1}

    def _definitions(self, kinds: tuple[type[ast.AST], ...]) -> Iterator[tuple[str, Any]]:
        for module, path in self.modules.items():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kinds):
                    yield module, node

    def arrows(self) -> Counter[tuple[str, str]]:
        """How many imports lead from each room to each other one."""
        pairs = ((room_of(each.source), room_of(each.target)) for each in self.imports)
        return Counter((a, b) for a, b in pairs if a != b and a in self._level and b in self._level)


def room_of(module: str) -> str:
    """The room of a module."""
    return module.partition(".")[0]


def _within(dotted: str, package: str) -> bool:
    return dotted == package or dotted.startswith(f"{package}.")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
