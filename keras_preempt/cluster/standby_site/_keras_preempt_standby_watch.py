"""Sees what imports that are made ahead do, and does it again when the script makes them."""

from __future__ import annotations

import atexit
import os
import sys
import time

import sitecustomize as site_part  # type: ignore[import-not-found]  # The one beside this file.

TYPE_CHECKING = False  # See `sitecustomize`.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _Everything:
    """Like a pattern that every text matches, and equal to no filter of anybody else."""

    def match(self, text: str) -> bool:
        return True


ALL = ("always", _Everything(), Warning, None, 0)
"""A filter of warnings: all are seen, and those that the script wants to see are shown when it makes the import."""

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class ImportWatch:
    """While it is entered: sees which variables imports read while it is `on`, and what they do that others see.

    That is exit handlers, and events: output (bytes), warnings (`warnings.WarningMessage`) and, from `RootLogger`,
    records of `logging`.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.on = False
        self._at_exit: list[tuple[Any, Any, Any]] = []
        self._events: list[Any] = []
        self._warnings: Any = None
        self._show: Any = None

    def __enter__(self) -> ImportWatch:
        self._register, self._getitem = atexit.register, os._Environ.__getitem__
        getitem = self._getitem

        def noting(environ: Any, key: Any) -> Any:
            if self.on:
                self.read.add(key)
            return getitem(environ, key)

        def later(function: Any, *args: Any, **kwargs: Any) -> Any:
            self._at_exit.append((function, args, kwargs))
            return function

        os._Environ.__getitem__ = noting  # type: ignore[method-assign]
        atexit.register = later  # type: ignore[assignment]
        self._file = os.memfd_create("output")
        self._saved = os.dup(1), os.dup(2)
        os.dup2(self._file, 1)
        os.dup2(self._file, 2)
        sys.meta_path.insert(0, self)
        if "warnings" in sys.modules:
            self._hear(sys.modules["warnings"])
        return self

    def __exit__(self, *exception: object) -> None:
        flush()
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._warnings is not None:
            self._warnings._showwarnmsg_impl = self._show
        os._Environ.__getitem__ = self._getitem  # type: ignore[method-assign]
        atexit.register = self._register
        for number, descriptor in enumerate(self._saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(self._file)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Waits for the import of `warnings`; C shows them itself until then."""
        if name != "warnings":
            return None
        sys.meta_path.remove(self)
        spec: Any = next(filter(None, (each.find_spec(name, None) for each in sys.meta_path)), None)
        if spec is not None and hasattr(spec.loader, "__dict__"):

            def run(module: ModuleType) -> None:
                del spec.loader.exec_module
                spec.loader.exec_module(module)
                self._hear(module)

            spec.loader.exec_module = run
        return spec  # type: ignore[no-any-return]

    def _hear(self, warnings: Any) -> None:
        self._warnings, self._show = warnings, warnings._showwarnmsg_impl
        warnings._showwarnmsg_impl = self.heard

    def heard(self, event: Any) -> None:
        """Notes an event after all output so far."""
        self._cut()
        self._events.append(event)

    def found(self) -> tuple[list[tuple[Any, Any, Any]], list[Any]]:
        """Returns exit handlers and events since the last call."""
        self._cut()
        handlers, self._at_exit = self._at_exit, []
        events, self._events = self._events, []
        return handlers, events

    def _cut(self) -> None:
        flush()
        if written := os.pread(self._file, os.lseek(self._file, 0, os.SEEK_CUR), 0):
            self._events.append(written)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)


class RootLogger:
    """While it is entered: the root logger is as the script has set it up, and what it gets is an event.

    Libraries look whether it has handlers: TensorFlow's logger has one of its own only if it has none. What an import
    does to it, as absl's does by `logging.basicConfig`, is undone at the end, and done again by `give_back`.
    """

    level = 0

    def __init__(self, wanted: list[Any], watch: ImportWatch) -> None:
        self._has_handlers, self._level = wanted
        self._watch = watch
        self.handlers: list[Any] = []  # Those that the import has added to none.
        self._set_to: int | None = None

    def __enter__(self) -> RootLogger:
        self._level_before = site_part.root_logger()[1]
        if (root := _root()) is not None:
            if self._level != self._level_before:
                root.setLevel(self._level)
            if self._has_handlers:
                root.addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if (root := _root()) is None:
            return
        root.removeHandler(self)
        if not self._has_handlers:  # It would have got the records that are events, too.
            self.handlers = root.handlers[:]
            root.handlers.clear()
        if root.level != self._level:
            self._set_to = root.level
        if root.level != self._level_before:
            root.setLevel(self._level_before)

    def give_back(self) -> None:
        """Does again what the import did to the root logger."""
        for handler in self.handlers:
            _root().addHandler(handler)
        if self._set_to is not None:
            _root().setLevel(self._set_to)

    def handle(self, record: Any) -> None:
        """What `logging` calls."""
        self._watch.heard(record)


def _root() -> Any:
    return getattr(sys.modules.get("logging"), "root", None)


def repeat(events: list[Any], modules: dict[str, ModuleType]) -> None:
    """Does again what an import did that brought these modules, in the order in which it did it."""
    for event in events:
        if isinstance(event, bytes):
            flush()
            os.write(2, event)
        elif hasattr(event, "levelno"):
            _log_again(event)
        else:
            _warn_again(event, modules)


def _log_again(record: Any) -> None:
    now = time.time()
    record.created, record.msecs = now, now % 1 * 1000
    for handler in _root().handlers:
        if record.levelno >= handler.level:
            handler.handle(record)


def _warn_again(event: Any, modules: dict[str, ModuleType]) -> None:
    """Warns; a warning that was meant for the code that imports is one for the script's."""
    file, line = event.filename, event.lineno
    if os.path.abspath(file).startswith(_HERE) and (frame := site_part.importer()) is not None:
        file, line, where = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    else:
        where = next((vars(each) for each in modules.values() if getattr(each, "__file__", None) == file), {})
    sys.modules["warnings"].warn_explicit(
        event.message,
        event.category,
        file,
        line,
        where.get("__name__"),
        where.setdefault("__warningregistry__", {}),
        source=event.source,
    )


def flush() -> None:
    """Writes what is in the buffers of Python's own streams."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
