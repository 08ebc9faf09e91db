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

import _keras_preempt_standby_watch as watching  # type: ignore[import-not-found]
import sitecustomize as site_part  # type: ignore[import-not-found]  # The one beside this file, as it is called at this moment.

TYPE_CHECKING = False  # See `sitecustomize`.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

PLACES = ("TF_CONFIG", "KERAS_DISTRIBUTION_")  # Others in every start.

# What libraries in C read, which is not seen: variables that begin so.
READ_IN_C = (
    "ABSL_",
    "ATEN_",
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
    "PYTHON",
    "PYTORCH_",
    "ROC",
    "TF_",
    "TF2_",
    "TORCH",
    "TPU_",
    "TZ",
    "XLA_",
)

del sys.modules[watching.__name__]
_filters: list[Any] = _warnings.filters  # The list of the module `warnings`.
_directory = os.getcwd()


class Import:
    """One import that the script makes, and what it did.

    `environment` and `root` are the variables and the root logger before it, `changes` what it changed in the
    variables; `modules` holds everything that it brought, `events` what it wrote, logged and warned of.
    """

    def __init__(self, head: str, root: list[Any]) -> None:
        self.head = head
        self.root = root
        self.streams = sys.stdout, sys.stderr
        self.file = file_of(head)
        self.environment = dict(os.environ)
        self.changes: dict[str, str | None] = {}
        self.modules: dict[str, ModuleType] = {}
        self.at_exit: list[tuple[Any, Any, Any]] = []
        self.filters: list[Any] = []
        self.events: list[Any] = []
        self.random_numbers: dict[str, object] = {}
        self.draws: list[str] = []  # Generators of random numbers from which it has drawn.

    def run(self, watch: Any) -> None:
        known, filters = set(sys.modules), list(_filters)
        with watching.RootLogger(self.root, watch) as self.root_logger:
            drawn = random_numbers()
            watch.on = True
            __import__(self.head)
            watch.on = False
        self.random_numbers = random_numbers()
        self.draws = [name for name, state in drawn.items() if self.random_numbers.get(name) != state]
        self.modules = {name: module for name, module in sys.modules.items() if name not in known}
        self.changes = site_part.changes(self.environment, dict(os.environ))
        self.filters = [each for each in _filters if each not in filters]
        self.at_exit, self.events = watch.found()

    def give_back(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        set_environment({**os.environ, **self.changes})
        for function, args, kwargs in self.at_exit:
            atexit.register(function, *args, **kwargs)
        self.root_logger.give_back()
        if self.filters:
            set_filters(self.filters + [each for each in _filters if each not in self.filters])


class Ahead:
    """Gives back what was imported ahead, in the order in which it was imported."""

    def __init__(self, imports: list[Import], read: set[str], channel: int) -> None:
        self._imports = imports
        self._read = read
        self._channel = channel
        self._socket = os.fstat(channel).st_ino
        self._pid = os.getpid()
        self._lock = _thread.RLock()
        self._where = {name: index for index, each in enumerate(imports) for name in each.modules}
        self._given = 0
        self._repeating: set[int] = set()  # Threads that repeat what imports have written.
        self._random_numbers = imports[-1].random_numbers
        self._training = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        site_part.make_way()
        index = self._where.get(name)
        # Otherwise somebody only asks where the module is.
        if index is None or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return None
        me = _thread.get_ident()
        if me in self._repeating:  # A warning is shown: only its own imports are made, as without a standby.
            module = self._imports[index].modules[name]
            return specified(name, sys.modules.pop(name) if name in sys.modules else module)
        with self._lock:
            if index < self._given and name not in sys.modules:
                return None  # The script has removed it, and imports it anew.
            given = self._give_back(index + 1)
        self._repeating.add(me)
        try:  # Without the lock: another thread may have it while it holds that of a module which a warning imports.
            for each in given:
                watching.repeat(each.events, each.modules)
        finally:
            self._repeating.discard(me)
        return specified(name, sys.modules.pop(name))

    def _give_back(self, end: int) -> list[Import]:
        given = self._imports[self._given : end]
        for each in given:
            if not self._training and os.getpid() == self._pid and (why := self._unfit(each)):
                self._start_afresh(why)
            each.give_back()
            self._given += 1
        self._leave()
        return given

    def _leave(self) -> None:
        """Goes when everything is given back, but not before training: a thread may still look for a module."""
        if self._training and self._given == len(self._imports) and self in sys.meta_path:
            sys.meta_path.remove(self)

    def training_begins(self) -> None:
        """From now on nothing starts the script again."""
        if not self._training and os.getpid() == self._pid:
            self._training = True
            self._leave()
            if self._is_open():
                os.close(self._channel)

    def _is_open(self) -> bool:
        """Whether the script has left the channel open, which it does not know, and opened no file in its place."""
        try:
            return os.fstat(self._channel).st_ino == self._socket
        except OSError:
            return False

    def _unfit(self, each: Import) -> str:
        for name, value in site_part.changes(each.environment, dict(os.environ)).items():
            in_c = name.startswith(READ_IN_C) and not name.startswith(PLACES)
            if (name in self._read or in_c) and not name.startswith(site_part.MINE):
                return f"{name} was {each.environment.get(name)!r} before its imports, and is {value!r} now"
        if site_part.root_logger() != each.root:
            return "the root logger was set up otherwise before its imports"
        if each.root_logger.handlers and (sys.stdout, sys.stderr) != each.streams:
            return f"the import of {each.head} logs to standard streams that it has replaced"
        states = random_numbers()
        if any(states.get(name) != self._random_numbers[name] for name in each.draws):
            return f"the import of {each.head} draws random numbers, whose generator it has used before"
        for name, module in each.modules.items():
            if sys.modules.get(name, module) is not module:
                return f"it has put something of its own in the place of {name}"
        return "" if file_of(each.head) == each.file else f"{each.head} is found in another place than before"

    def _start_afresh(self, why: str) -> None:
        """Replaces this process by a new one, in which the script starts again and imports by itself."""
        if self._is_open():
            say(self._channel, f"unfit {why}")
        watching.flush()
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


def specified(name: str, module: ModuleType) -> ModuleSpec:
    """Returns the specification with which an import gives this module."""
    return type(os.__spec__)(name, Given(module))  # type: ignore[arg-type]


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


def import_ahead(heads: list[tuple[str, dict[str, str | None], list[Any]]]) -> tuple[list[Import], set[str]]:
    """Makes the imports, each in the environment in which the script makes it, and hides what they brought.

    Returns them with the variables that they have read. Raises RuntimeError if they changed what cannot be hidden.
    """
    imports: list[Import] = []
    before, filters = state(), list(_filters)
    with watching.ImportWatch() as watch:
        set_filters([watching.ALL, *filters])
        for head, changed, root in heads:
            if head not in sys.modules:
                set_environment({**site_part.started, **changed})
                imports.append(Import(head, root))
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
    threading = sys.modules.get("threading")
    hook = getattr(threading, "excepthook", None)
    own = hook is None or hook is getattr(threading, "__excepthook__", hook)
    return {
        "the working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "the hooks for errors": (sys.excepthook, sys.unraisablehook, own),
        "the recursion limit": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "signal handlers": [_signal.getsignal(number) for number in sorted(_signal.valid_signals())],
        "the root logger": site_part.root_logger(),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
    }


def random_numbers() -> dict[str, object]:
    """The state of the generators that a script can have seeded."""
    states: dict[str, object] = {}
    if hasattr(module := sys.modules.get("random"), "getstate"):
        states["random"] = module.getstate()  # type: ignore[union-attr]
    if hasattr(module := sys.modules.get("numpy.random"), "get_state"):
        _, key, *rest = module.get_state()  # type: ignore[union-attr]
        states["numpy"] = key.tobytes(), rest
    return states


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
