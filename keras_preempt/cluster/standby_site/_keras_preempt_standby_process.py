"""A process that imports ahead what a script imports, waits, and becomes the script's process.

What was imported is hidden until the script imports it, and then given back with what its import has done: modules,
changes of the environment, exit handlers, filters of warnings, output. So a script cannot tell the difference. What it
does before its imports is heeded: if a variable that an import has read has another value, or another file would be
found, a new process takes the place of this one and imports by itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import _warnings
import atexit
import gc
import marshal
import os
import sys
import time

import sitecustomize as site_part  # type: ignore[import-not-found]  # The one beside this file, as it is called at this moment.

TYPE_CHECKING = False  # See `sitecustomize`.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

PLACES = ("TF_CONFIG", "KERAS_DISTRIBUTION_")  # Others in every start.

# What libraries in C read, which is not seen: variables that begin so.
READ_IN_C = (
    *(
        "ABSL_",
        "BLIS_",
        "CUBLAS_",
        "CUDA",
        "CUDNN_",
        "GLIBC_",
        "GLOG_",
        "GOTO_",
        "GRPC_",
        "HIP_",
        "HSA_",
        "JAX_",
        "KMP_",
    ),
    *(
        "LANG",
        "LC_",
        "LD_",
        "LIBTPU",
        "MALLOC",
        "MKL_",
        "NCCL_",
        "NUMEXPR_",
        "NVIDIA_",
        "OMP_",
        "OPENBLAS_",
        "PATH",
    ),
    *("PYTHON", "ROC", "TF_", "TF2_", "TPU_", "TZ", "XLA_"),
)

_filters: list[Any] = _warnings.filters  # The list of the module `warnings`.
_directory = os.getcwd()


class Import:
    """One import that the script makes, and what it did.

    `environment` is how it was before, `changes` what it changed in it; `modules` holds everything that it brought.
    """

    def __init__(self, head: str) -> None:
        self.head = head
        self.file = file_of(head)
        self.environment = dict(os.environ)
        self.changes: dict[str, str | None] = {}
        self.modules: dict[str, ModuleType] = {}
        self.at_exit: list[tuple[Any, Any, Any]] = []
        self.filters: list[Any] = []
        self.output = b""

    def run(self, watch: ImportWatch) -> None:
        known, filters = set(sys.modules), list(_filters)
        watch.on = True
        __import__(self.head)
        watch.on = False
        self.modules = {name: module for name, module in sys.modules.items() if name not in known}
        self.changes = site_part.changes(self.environment, dict(os.environ))
        self.filters = [each for each in _filters if each not in filters]
        self.at_exit, self.output = watch.found()

    def give_back(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        set_environment({**os.environ, **self.changes})
        for function, args, kwargs in self.at_exit:
            atexit.register(function, *args, **kwargs)
        if self.filters:
            set_filters(self.filters + [each for each in _filters if each not in self.filters])
        if self.output:
            flush()
            os.write(2, self.output)


class ImportWatch:
    """While it is entered: sees which variables imports read while it is `on`, their exit handlers and output."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.on = False
        self._at_exit: list[tuple[Any, Any, Any]] = []

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
        return self

    def __exit__(self, *exception: object) -> None:
        flush()
        os._Environ.__getitem__ = self._getitem  # type: ignore[method-assign]
        atexit.register = self._register
        for number, descriptor in enumerate(self._saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(self._file)

    def found(self) -> tuple[list[tuple[Any, Any, Any]], bytes]:
        """Returns exit handlers and output since the last call."""
        flush()
        written = os.pread(self._file, os.lseek(self._file, 0, os.SEEK_CUR), 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)
        handlers, self._at_exit = self._at_exit, []
        return handlers, written


class Ahead:
    """Gives back what was imported ahead, in the order in which it was imported."""

    def __init__(self, imports: list[Import], read: set[str], channel: int) -> None:
        self._imports = imports
        self._read = read
        self._channel = channel
        self._pid = os.getpid()
        self._lock = _thread.RLock()
        self._where = {name: index for index, each in enumerate(imports) for name in each.modules}
        self._given = 0
        self._training = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
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
                sys.meta_path.remove(self)
            spec: ModuleSpec = type(os.__spec__)(name, Given(sys.modules.pop(name)))  # type: ignore[arg-type]
            return spec

    def training_begins(self) -> None:
        """From now on nothing starts the script again."""
        if not self._training and os.getpid() == self._pid:
            self._training = True
            os.close(self._channel)

    def _unfit(self, each: Import) -> str:
        for name, value in site_part.changes(each.environment, dict(os.environ)).items():
            in_c = name.startswith(READ_IN_C) and not name.startswith(PLACES)
            if (name in self._read or in_c) and not name.startswith(site_part.MINE):
                return f"{name} was {each.environment.get(name)!r} before its imports, and is {value!r} now"
        return "" if file_of(each.head) == each.file else f"{each.head} is found in another place than before"

    def _start_afresh(self, why: str) -> None:
        """Replaces this process by a new one, in which the script starts again and imports by itself."""
        say(self._channel, f"unfit {why}")
        flush()
        os.chdir(_directory)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], site_part.started)


class Given:
    """The loader of a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        try:  # noqa: SIM105 - contextlib is not imported.
            module.__spec__ = self._spec
        except AttributeError:
            pass  # Not every object that is a module has one.


def stand_by(channel: int) -> None:
    """Imports ahead what the launcher names, and returns when this process is to be a worker."""
    os.set_inheritable(channel, False)
    try:
        imports, read = import_ahead(receive(channel))
    except BaseException as error:
        say(channel, f"unfit {type(error).__name__}: {error}")
        os._exit(0)
    say(channel, f"ready {os.getpid()} {site_part.resident()}")
    environment: dict[str, str] = receive(channel)
    changed = site_part.changes(site_part.started, environment)
    changed = {name: value for name, value in changed.items() if not name.startswith(site_part.MINE)}
    unfit = [name for name in changed if name in read or not name.startswith(PLACES)]
    unfit += [each.head for each in imports if file_of(each.head) != each.file]
    if unfit:
        say(channel, f"unfit {unfit[0]} has changed since it was imported")
        os._exit(0)
    site_part.started = environment
    set_environment(environment)
    if imports:
        site_part.ahead = Ahead(imports, read, channel)
        sys.meta_path.insert(0, site_part.ahead)
    site_part.began = os.getpid(), time.time()
    say(channel, "taken")


def import_ahead(heads: list[tuple[str, dict[str, str | None]]]) -> tuple[list[Import], set[str]]:
    """Makes the imports, each in the environment in which the script makes it, and hides what they brought.

    Returns them with the variables that they have read. Raises RuntimeError if they changed what cannot be hidden.
    """
    imports: list[Import] = []
    before, filters = state(), list(_filters)
    with ImportWatch() as watch:
        for head, changed in heads:
            if head not in sys.modules:
                set_environment({**site_part.started, **changed})
                imports.append(Import(head))
                imports[-1].run(watch)
    after = state()
    for each in imports:
        for name in each.modules:
            sys.modules.pop(name, None)
    set_filters(filters)
    set_environment(site_part.started)
    if differ := [what for what in before if before[what] != after[what]]:
        raise RuntimeError(f"the imports change {', '.join(differ)} of the process")
    return imports, watch.read


def state() -> dict[str, object]:
    """What a script would see changed before it imports what changes it."""
    logging, threading = sys.modules.get("logging"), sys.modules.get("threading")
    hook = getattr(threading, "excepthook", None)
    own = hook is None or hook is getattr(threading, "__excepthook__", hook)
    root = getattr(logging, "root", None)
    return {
        "the working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "the hooks for errors": (sys.excepthook, sys.unraisablehook, own),
        "the recursion limit": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "signal handlers": [_signal.getsignal(number) for number in sorted(_signal.valid_signals())],
        "the root logger": ([], 30) if root is None else (list(root.handlers), root.level),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
    }


def file_of(head: str) -> tuple[str | None, int, int] | None:
    """What identifies the file in which the package of a module is found now."""
    spec = site_part.locate(head.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    try:
        status = os.stat(spec.origin)
    except OSError:
        return spec.origin, 0, 0
    return spec.origin, status.st_mtime_ns, status.st_size


def set_environment(wanted: dict[str, str | None] | dict[str, str]) -> None:
    for name in [name for name in os.environ if wanted.get(name) is None]:
        del os.environ[name]
    for name, value in wanted.items():
        if value is not None and os.environ.get(name) != value:
            os.environ[name] = value


def set_filters(filters: list[Any]) -> None:
    """Sets the filters of warnings, with or without the module `warnings`."""
    if filters != _filters:
        _filters[:] = filters
        for name in ("_filters_mutated", "_filters_mutated_lock_held"):  # The second since Python 3.14.
            getattr(_warnings, name, lambda: None)()


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def say(channel: int, line: str) -> None:
    try:  # noqa: SIM105
        os.write(channel, line.replace("\n", " ").encode() + b"\n")
    except OSError:
        pass  # The launcher is gone, and ends this process.


def receive(channel: int) -> Any:
    """Returns the next message; ends this process if the launcher needs it no more."""
    data = b""
    while True:
        piece = os.read(channel, 1 << 16)
        if not piece:
            os._exit(0)
        data += piece
        length, colon, rest = data.partition(b":")
        if colon and len(rest) == int(length):
            return marshal.loads(rest)
