"""A process that imports ahead what a script imports, waits, and becomes the script's process.

What was imported is hidden until the script imports it, and then given back with what its import has done: modules,
changes of the environment, exit handlers, filters of warnings, output. So a script cannot tell the difference. What it
does before its imports is heeded: if a variable that an import has read has another value, or another file would be
found, a new process takes the place of this one and imports by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Any

import sitecustomize as site_part  # The one beside this file, as it is called at this moment.

_PLACES = ("TF_CONFIG", "KERAS_DISTRIBUTION_")  # Others in every start.

# Of libraries in C, whose reading of variables is not seen.
_READ_IN_C = tuple(
    "ABSL_ BLIS_ CUBLAS_ CUDA CUDNN_ GLIBC_ GLOG_ GOTO_ GRPC_ HIP_ HSA_ JAX_ KMP_ LANG LC_ LD_ LIBTPU MALLOC MKL_ NCCL_ "
    "NUMEXPR_ NVIDIA_ OMP_ OPENBLAS_ PATH PYTHON ROC TF_ TF2_ TPU_ TZ XLA_".split()
)

_directory = os.getcwd()


class _Import:
    """One import that the script makes, and what it did.

    `environment` is how it was before, `changes` what it changed in it; `modules` holds everything that it brought.
    """

    def __init__(self, head: str) -> None:
        self.head = head
        self.file = _file(head)
        self.environment = dict(os.environ)
        self.changes: dict[str, str | None] = {}
        self.modules: dict[str, ModuleType] = {}
        self.at_exit: list[tuple[Any, Any, Any]] = []
        self.filters: list[Any] = []
        self.output = b""

    def run(self, watch: _Watch) -> None:
        known, filters = set(sys.modules), list(warnings.filters)
        watch.on = True
        importlib.import_module(self.head)
        watch.on = False
        self.modules = {name: module for name, module in sys.modules.items() if name not in known}
        self.changes = site_part.changes(self.environment, dict(os.environ))
        self.filters = [each for each in warnings.filters if each not in filters]
        self.at_exit, self.output = watch.found()

    def give_back(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        _set_environment({**os.environ, **self.changes})
        for function, args, kwargs in self.at_exit:
            atexit.register(function, *args, **kwargs)
        if self.filters:
            warnings.filters[:] = self.filters + [
                each for each in warnings.filters if each not in self.filters
            ]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        if self.output:
            _flush()
            os.write(2, self.output)


class _Watch:
    """While it is entered: sees which variables imports read, their exit handlers, and their output."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.on = False
        self._at_exit: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> _Watch:
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
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._saved = os.dup(1), os.dup(2)
        os.dup2(self._file.fileno(), 1)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _flush()
        os._Environ.__getitem__ = self._getitem  # type: ignore[method-assign]
        atexit.register = self._register
        for number, descriptor in enumerate(self._saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self._file.close()

    def found(self) -> tuple[list[tuple[Any, Any, Any]], bytes]:
        """Returns exit handlers and output since the last call."""
        _flush()
        written = os.pread(self._file.fileno(), self._file.tell(), 0)
        self._file.seek(0)
        self._file.truncate()
        handlers, self._at_exit = self._at_exit, []
        return handlers, written


class _Ahead:
    """Gives back what was imported ahead, in the order in which it was imported."""

    def __init__(self, imports: list[_Import], read: set[str], channel: socket.socket) -> None:
        self._imports = imports
        self._read = read
        self._channel = channel
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._where = {name: index for index, each in enumerate(imports) for name in each.modules}
        self._given = 0
        self._training = False

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        site_part.make_way()
        index = self._where.get(name)
        # Otherwise somebody only asks where the module is.
        if index is None or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return None
        with self._lock:
            if name in sys.modules or index < self._given:
                return None  # The script has removed it, and imports it anew.
            for each in self._imports[self._given : index + 1]:
                if not self._training and os.getpid() == self._pid and (why := self._unfit(each)):
                    self._start_afresh(why)
                each.give_back()
            self._given = index + 1
            if self._given == len(self._imports):
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            return ModuleSpec(name, _Given(sys.modules.pop(name)))

    def training_begins(self) -> None:
        """From now on nothing starts the script again."""
        self._training = True
        self._channel.close()

    def _unfit(self, each: _Import) -> str:
        for name, value in site_part.changes(each.environment, dict(os.environ)).items():
            if name in self._read or (name.startswith(_READ_IN_C) and not name.startswith(_PLACES)):
                if not name.startswith(site_part.MINE):
                    return (
                        f"{name} was {each.environment.get(name)!r} before its imports, and is {value!r} now"
                    )
        return "" if _file(each.head) == each.file else f"{each.head} is found in another place than before"

    def _start_afresh(self, why: str) -> None:
        """Replaces this process by a new one, in which the script starts again and imports by itself."""
        with contextlib.suppress(OSError):
            self._channel.sendall(f"unfit {why}".replace("\n", " ").encode() + b"\n")
        _flush()
        os.chdir(_directory)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], site_part.started)


class _Given:
    """The loader of a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def stand_by(descriptor: int) -> None:
    """Imports ahead what the launcher names, and returns when this process is to be a worker."""
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    heads = _receive(channel)
    try:
        imports, read = _import_ahead(heads)
    except BaseException as error:
        channel.sendall(f"unfit {type(error).__name__}: {error}".replace("\n", " ").encode() + b"\n")
        os._exit(0)
    channel.sendall(f"ready {os.getpid()} {site_part.resident()}\n".encode())
    environment = _receive(channel)
    changed = site_part.changes(site_part.started, environment)
    changed = {name: value for name, value in changed.items() if not name.startswith(site_part.MINE)}
    unfit = [name for name in changed if name in read or not name.startswith(_PLACES)]
    unfit += [each.head for each in imports if _file(each.head) != each.file]
    if unfit:
        channel.sendall(f"unfit {unfit[0]} has changed since it was imported\n".encode())
        os._exit(0)
    site_part.started = environment
    _set_environment(environment)
    site_part.ahead = _Ahead(imports, read, channel)
    sys.meta_path.insert(0, site_part.ahead)
    site_part.began = os.getpid(), time.time()
    channel.sendall(b"taken\n")


def _import_ahead(heads: list[tuple[str, dict[str, str | None]]]) -> tuple[list[_Import], set[str]]:
    """Makes the imports, each in the environment in which the script makes it, and hides what they brought."""
    own = _Import("")  # What this module needs, which a script has not imported either.
    own.modules = {name: module for name, module in sys.modules.items() if name not in site_part.known}
    imports = [own]
    state, filters = _state(), list(warnings.filters)
    with _Watch() as watch:
        for head, changed in heads:
            if head not in sys.modules:
                _set_environment({**site_part.started, **changed})
                imports.append(_Import(head))
                imports[-1].run(watch)
    for each in imports:
        for name in each.modules:
            sys.modules.pop(name, None)
    warnings.filters[:] = filters
    warnings._filters_mutated()  # type: ignore[attr-defined]
    _set_environment(site_part.started)
    now = _state()
    if changed_state := [what for what in state if state[what] != now[what]]:
        raise RuntimeError(f"the imports change {', '.join(changed_state)} of the process")
    return imports, watch.read


def _state() -> dict[str, object]:
    """What a script would see changed before it imports what changes it."""
    return {
        "the working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "the hooks for errors": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "the recursion limit": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "signal handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "the root logger": (list(logging.root.handlers), logging.root.level),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
    }


def _file(head: str) -> tuple[str | None, int, int] | None:
    """What identifies the file in which the package of a module is found now."""
    spec = PathFinder.find_spec(head.partition(".")[0]) if head else None
    if spec is None or spec.origin is None:
        return None
    try:
        status = os.stat(spec.origin)
    except OSError:
        return spec.origin, 0, 0
    return spec.origin, status.st_mtime_ns, status.st_size


def _set_environment(wanted: dict[str, str | None] | dict[str, str]) -> None:
    for name in [name for name in os.environ if wanted.get(name) is None]:
        del os.environ[name]
    for name, value in wanted.items():
        if value is not None and os.environ.get(name) != value:
            os.environ[name] = value


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _receive(channel: socket.socket) -> Any:
    """Returns the next line as JSON; ends this process if the launcher needs it no more."""
    text = b""
    while not text.endswith(b"\n"):
        piece = channel.recv(1 << 16)
        if not piece:
            os._exit(0)
        text += piece
    return json.loads(text)
