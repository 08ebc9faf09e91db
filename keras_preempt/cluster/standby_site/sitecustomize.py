"""The part of a standby inside its interpreter; in the first start of a script it notes what the script imports.

The launcher starts ``python train.py`` itself, with the folder of this file first on PYTHONPATH. Python runs it as its
`sitecustomize`, at the end of its own start and right before the script. So the interpreter runs the script as ever:
``__main__``, arguments, paths, ``-m`` and ``-c`` need no imitation. Nothing of the package and next to nothing of
Python is imported here, since a script must not find imported what it has not imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is not imported; type checkers know the name.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType
    from typing import Any

VARIABLE = "KERAS_PREEMPT_STANDBY"  # "notes" or the number of a descriptor; "=" and the user's PYTHONPATH if it is set
NAME = "_keras_preempt_standby"  # Of the module that `keras_preempt.process.this_process` asks.
STATUS, WORKER = (
    "KERAS_PREEMPT_STATUS_DIR",
    "KERAS_PREEMPT_WORKER",
)  # See `keras_preempt.process.environment`.
MINE = "KERAS_PREEMPT_"  # Variables of the package, on which no import depends.

began: tuple[int, float] | None = None
"""Of a standby that became a worker: its process id, and when that was, in seconds since 1970."""

started: dict[str, str] = {}  # The environment in which the script starts.
ahead: Any = None  # What gives back the imports, in a standby that became a worker.
_notes: Notes | None = None
_PACKAGE = "keras_preempt"  # Installed, also where it is only a checkout.
_HERE = os.path.dirname(os.path.abspath(__file__))


class Notes:
    """Sees every import, and notes those that the script makes, with what it has set in the environment before."""

    def __init__(self) -> None:
        self._installed = Installed()
        self._heads: dict[str, list[Any]] = {}
        self._mixed = ""
        self._in_child: dict[str, str] | None = None  # The variables at the last import, in a forked child.
        os.register_at_fork(after_in_child=self._forked)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        make_way()
        if sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return  # Somebody only asks where a module is.
        frame = importer()
        if self._in_child is not None:
            self._see_child(frame)
            return
        own = frame is None or not self._is_installed(frame)
        # Packages, also those that one function of another imports; parts of one, if the user's code asks for them.
        if (own or path is None or name.startswith(_PACKAGE)) and not self._in_import(frame):
            self._heads.setdefault(name, [name, changes(started, dict(os.environ)), root_logger()])
        elif path is None and not own and not self._mixed and locate(name, self._own_folders()) is not None:
            self._mixed = name

    def _forked(self) -> None:
        self._in_child = dict(os.environ)

    def _see_child(self, frame: FrameType | None) -> None:
        """In a child no standby can start afresh if variables are not as they were when it imported ahead."""
        before, self._in_child = self._in_child, dict(os.environ)
        if before == self._in_child or self._in_import(frame) or not (folder := os.environ.get(STATUS)):
            return
        with open(os.path.join(folder, f"child-imports-{os.environ.get(WORKER, '0')}"), "w"):
            pass

    def told(self) -> dict[str, object]:
        """Ends the notes; returns them."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        heads = [head for name, head in self._heads.items() if self._installed.module(name)]
        return {"heads": heads, "mixed": self._mixed, "resident": resident()}

    def _own_folders(self) -> list[str]:
        folders = [each or os.getcwd() for each in sys.path]
        return [each for each in folders if not self._installed.file(os.path.join(each, ""))]

    def _is_installed(self, frame: FrameType) -> bool:
        name = str(frame.f_globals.get("__name__"))
        return name.partition(".")[0] == _PACKAGE or self._installed.file(frame.f_code.co_filename)

    def _in_import(self, frame: FrameType | None) -> bool:
        """Whether an installed module is being imported in this frame or one that called it."""
        while frame is not None:
            code = frame.f_code
            main = frame.f_globals.get("__name__") == "__main__"
            if code.co_name == "<module>" and not main and self._is_installed(frame):
                return not code.co_filename.startswith("<frozen ")
            frame = frame.f_back
        return False


class Installed:
    """Tells files of installed packages and of Python from the user's own."""

    def __init__(self) -> None:
        import site  # Python has imported it, since it runs this module.

        folders = [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
        self._prefixes = tuple({os.path.join(os.path.realpath(folder), "") for folder in folders})
        self._known: dict[str, bool] = {}

    def file(self, path: str | None) -> bool:
        if path is None or path in ("built-in", "frozen") or path.startswith("<frozen "):
            return True
        if path not in self._known:
            real = (
                os.path.join(os.path.realpath(path), "") if path.endswith(os.sep) else os.path.realpath(path)
            )
            self._known[path] = real.startswith(self._prefixes)
        return self._known[path]

    def module(self, name: str) -> bool:
        if name.partition(".")[0] == _PACKAGE:
            return name in sys.modules
        spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None:
            return False
        if spec.origin is None:
            folders = [os.path.join(folder, "") for folder in spec.submodule_search_locations or ()]
            return bool(folders) and all(map(self.file, folders))
        return self.file(spec.origin)


def told() -> dict[str, object]:
    """Returns this process and what its script has imported so far, as JSON; called when training begins."""
    if ahead is not None:
        ahead.training_begins()
    return {"pid": os.getpid(), **(_notes.told() if _notes is not None else {})}


def make_way() -> None:
    """Called at the script's first import: only the start of Python needs this module under its name."""
    if getattr(sys.modules.get("sitecustomize"), "__file__", None) == __file__:
        del sys.modules["sitecustomize"]


def locate(name: str, folders: list[str] | None = None) -> ModuleSpec | None:
    """Returns where a module is found in folders, by default in those of sys.path."""
    finder: Any = next(
        (each for each in sys.meta_path if getattr(each, "__name__", "") == "PathFinder"), None
    )
    found: ModuleSpec | None = None if finder is None else finder.find_spec(name, folders)
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Returns the variables that differ, with None for one that is gone."""
    changed: dict[str, str | None] = {key: after[key] for key in after if before.get(key) != after[key]}
    return changed | {key: None for key in before if key not in after}


def root_logger() -> list[Any]:
    """Returns whether the root logger has handlers, and its level."""
    root = getattr(sys.modules.get("logging"), "root", None)
    return [False, 30] if root is None else [bool(root.handlers), root.level]


def resident() -> int:
    """Bytes of memory of this process; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def importer() -> FrameType | None:
    """The code that has asked for the import during which code of this folder calls this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        of_import = file.startswith("<frozen importlib") or file.endswith("/importlib/__init__.py")
        if not of_import and os.path.dirname(file) != _HERE:
            return frame
        frame = frame.f_back
    return None


def _begin(given: str) -> None:
    mode, was_set, path = given.partition("=")
    if was_set:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    module = sys.modules[NAME] = sys.modules["sitecustomize"]
    standby: Any = None if mode == "notes" else __import__("_keras_preempt_standby_process")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - The user's own.
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = module
    finally:  # One that fails is not the end: Python says so, and goes on with the script.
        _follow(mode, standby)


def _follow(mode: str, standby: Any) -> None:
    global _notes
    sys.modules.pop("__future__", None)  # Python imports it for the first line of code here.
    started.update(os.environ)
    if mode == "notes":
        _notes = Notes()
        sys.meta_path.insert(0, _notes)
    else:
        standby.stand_by(int(mode))


if VARIABLE in os.environ:
    _begin(os.environ.pop(VARIABLE))
