"""The package keeps its rules: imports point down, no circle, few names in the root, no long file, nor in the tests.

Private names of Keras and TensorFlow have a test of their own, `tests/test_private_names.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import MOST_LINES, MOST_ROOMS, PACKAGE, ROOMS, TESTS, House

HOUSE = House()


def test_every_import_points_down() -> None:
    assert HOUSE.pointing_up() == []


def test_no_import_leads_to_a_floor_above() -> None:
    assert HOUSE.climbing() == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert HOUSE.circle() == []


def test_the_root_has_few_names_and_each_has_its_place_in_the_order() -> None:
    assert len(HOUSE.rooms()) <= MOST_ROOMS
    assert HOUSE.rooms() == {name for names in ROOMS for name in names}


@pytest.mark.parametrize("root", [PACKAGE, TESTS], ids=lambda root: root.name)
def test_no_file_is_long(root: Path) -> None:
    assert House(root).long_files() == []


PUBLIC = {
    "callback.__init__",
    "cluster.local.__init__",
    "cluster.supervisor.__init__",
    "notices.termination.__init__",
    "testing.drills.running.drill",
}
PUBLIC |= {f"testing.{service}.fake.__init__" for service in ("azure", "gcs", "s3")}
"""Of the public API, whose parameters are options by name."""


def test_no_function_takes_many_parameters() -> None:
    assert [each for each in HOUSE.long_signatures() if each.partition(":")[0] not in PUBLIC] == []


ONE_MEANING = {
    "WorkerLost": "one public class for each backend",
    "capture": "what a module of `state` captures, and ...",
    "restore": "... restores",
    "drill": "the command, and the same as a function for tests",
    "main": "the entry point of a program",
}
"""Names that several modules define, for one thing."""


def test_a_name_stands_for_one_thing() -> None:
    """A backend defines what the other one defines, too."""
    shared = {
        name: {re.sub(r"^backend\.(tensorflow|jax|torch)\.", "", module) for module in modules}
        for name, modules in HOUSE.shared_names().items()
    }
    assert {name: where for name, where in shared.items() if len(where) > 1 and name not in ONE_MEANING} == {}


def test_the_package_is_read() -> None:
    found = {(each.source, each.target) for each in HOUSE.imports}
    assert len(HOUSE.modules) > 150
    assert {("", "callback"), ("callback", "training.run.fit"), ("cli.main", "cli.run")} <= found


# -- The rules themselves, on a package that is made up ------------------------------------------------------

MADE_UP = {("top",): "", ("left", "right"): "", ("bottom",): ""}


FILES = ("__init__", "top/__init__", "top/one", "left", "right", "bottom/__init__", "bottom/one")


def made_up(folder: Path, code: dict[str, str]) -> House:
    """A package with a room at the top, two on one level, and one at the bottom; all its files but these are empty."""
    root = folder / "made_up"
    for name, text in {**dict.fromkeys(FILES, ""), **code}.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(root, MADE_UP)


def test_imports_of_what_is_below_are_fine(tmp_path: Path) -> None:
    house = made_up(
        tmp_path,
        {
            "__init__": "from made_up.top.one import x",
            "top/one": "import made_up.left\nfrom made_up import right\nfrom made_up.bottom import one, name",
            "left": "from made_up.bottom.one import name\nfrom made_up import __version__\nimport json.decoder",
            "bottom/one": "from . import name\nfrom made_up.bottom import __doc__\nimport made_upper.top",
        },
    )
    assert house.pointing_up() == []
    assert house.circle() == []
    assert house.rooms() == {"top", "left", "right", "bottom"}
    assert [(each.source, each.target) for each in house.imports] == [
        ("", "top.one"),
        ("bottom.one", "bottom"),
        ("left", "bottom.one"),
        ("top.one", "left"),
        ("top.one", "right"),
        ("top.one", "bottom"),
        ("top.one", "bottom.one"),
    ]
    assert house.arrows() == {
        ("left", "bottom"): 1,
        ("top", "left"): 1,
        ("top", "right"): 1,
        ("top", "bottom"): 2,
    }


@pytest.mark.parametrize(
    "code",
    [
        "from made_up.top import one",
        "from made_up.top.one import name",
        "from made_up import top",
        "import made_up.top.one",
        "import made_up.top.one as one",
        "from ..top import one",
        "from ..top.one import name",
        "from .. import top",
        "def f():\n    from made_up.top import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made_up.top import one",
        "from importlib import import_module\nimport_module('made_up.top.one')",
        "from made_up import Anything",
        "from made_up.unknown import name",
    ],
)
def test_an_import_that_points_up_is_found(code: str, tmp_path: Path) -> None:
    (found,) = made_up(tmp_path, {"bottom/one": code}).pointing_up()
    assert found.startswith("bottom.one, line ")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        # Rooms of one level do not import each other.
        ({"left": "import made_up.right"}, ["left, line 1, imports right"]),
        # A folder's own relative import is read from the folder.
        (
            {"bottom/__init__": "from .one import name\nfrom ..top import one"},
            ["bottom, line 2, imports top.one"],
        ),
        # A room that the order does not name is below none.
        ({"left": "import made_up.attic", "attic": ""}, ["left, line 1, imports attic"]),
    ],
)
def test_what_points_up_is_named(code: dict[str, str], found: list[str], tmp_path: Path) -> None:
    house = made_up(tmp_path, code)
    assert house.pointing_up() == found
    assert house.rooms() == {"top", "left", "right", "bottom", *(code.keys() & {"attic"})}


@pytest.mark.parametrize(
    "inside", ["{}", "def f():\n    {}", "import typing\nif typing.TYPE_CHECKING:\n    {}"]
)
def test_a_circle_is_found(inside: str, tmp_path: Path) -> None:
    house = made_up(
        tmp_path,
        {
            "bottom/__init__": "from made_up.bottom import one",
            "bottom/one": inside.format("from made_up.bottom import name"),
        },
    )
    assert house.pointing_up() == []
    assert house.circle() in (["bottom", "bottom.one", "bottom"], ["bottom.one", "bottom", "bottom.one"])


def test_a_module_may_be_imported_by_one_that_it_knows_by_name_alone(tmp_path: Path) -> None:
    by_name = "import importlib\nimportlib.import_module('made_up.bottom.one')"
    house = made_up(tmp_path, {"bottom/__init__": by_name, "bottom/one": "from made_up.bottom import name"})
    assert house.circle() == []


@pytest.mark.parametrize("inside", ["{}", "def f():\n    {}"])
def test_an_import_that_climbs_is_named(inside: str, tmp_path: Path) -> None:
    floors = {"top": ("upper", "lower")}
    down, up = "from made_up.top.lower.b import x", inside.format("from made_up.top.upper.a import y")
    house = made_up(
        tmp_path, {"top/upper/a": down, "top/lower/b": "", "top/one": "import made_up.top.upper.a"}
    )
    assert house.climbing(floors) == []
    house = made_up(tmp_path, {"top/upper/a": "", "top/lower/b": up})
    (found,) = house.climbing(floors)
    assert found.startswith("top.lower.b, line ")


def test_a_long_file_is_named(tmp_path: Path) -> None:
    house = made_up(tmp_path, {"left": "\n" * MOST_LINES, "right": "\n" * (MOST_LINES + 1)})
    assert house.long_files() == [f"right: {MOST_LINES + 1} lines"]


def test_other_files_in_the_root_count_but_for_the_mark_of_typing(tmp_path: Path) -> None:
    house = made_up(tmp_path, {})
    for name in ("py.typed", "notes.txt"):
        (tmp_path / "made_up" / name).touch()
    assert house.rooms() == {"top", "left", "right", "bottom", "notes.txt"}
