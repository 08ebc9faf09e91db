"""What the code of a user's callback could do, read from it without calling anything.

A hook is read together with all that it names: methods of its class and of the objects that the callback holds,
functions of its module and of others of the user's, what lambdas and decorators enclose. Which object a name belongs to
is not told apart, so that more is found than is there; what cannot be read could do anything.
"""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import keras

from keras_preempt.backend.user_code import is_installed

TEST_HOOKS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
"""The hooks of a validation."""

BEGIN_HOOKS = ("on_train_begin", "on_epoch_begin")
"""Those that Keras calls in a restarted process before the first step, though they had been called."""

BEFORE_FIRST_STEP = (
    *("set_model", "set_params", "on_train_begin"),
    *("on_epoch_begin", "on_train_batch_begin", "on_batch_begin"),
)
"""Those that Keras calls before the first step of a fit."""

WHILE_TRAINING = (
    *BEFORE_FIRST_STEP,
    *("on_train_batch_end", "on_batch_end", "on_epoch_end"),
    *TEST_HOOKS,
)
"""All that Keras calls before the last step of a fit."""

_CHANGING = frozenset(
    {
        *("set_weights", "load_weights", "load_own_variables", "set_state_tree", "finalize_variable_values"),
        *("assign", "assign_add", "assign_sub", "scatter_update", "scatter_nd_update", "value", "_value"),
        *("variables", "weights", "trainable_variables", "trainable_weights"),
        *("non_trainable_variables", "non_trainable_weights", "moving_average", "get_variable"),
        *("apply", "apply_gradients", "stateless_apply", "minimize", "build_from_config"),
        *("fit", "train_on_batch", "train_step", "train_function", "SwapEMAWeights", "exec", "eval"),
    }
)
"""Names without which weights are hardly changed."""

_HARMLESS = frozenset(
    {
        *sys.stdlib_module_names,
        *("keras", "tensorflow", "numpy", "jax", "jaxlib", "pandas", "scipy", "sklearn", "skimage", "h5py"),
        *("matplotlib", "seaborn", "PIL", "cv2", "tqdm", "rich", "wandb", "mlflow", "absl", "keras_preempt"),
    }
)
"""Packages that change no weights unless it is by one of those names."""

_MOST = 500
"""Functions that are read at most."""


def may_change_weights(of: keras.callbacks.Callback | keras.Model, methods: Iterable[str]) -> bool:
    """Whether methods, as the user has written them, could change the weights of the model.

    Args:
        of: A callback that `fit` has given its model, or the model itself.
        methods: Their names, such as those of hooks.
    """
    found = Reading(of)
    for name in methods:
        found.method(name)
    return found.changes_weights()


def may_assign(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Whether callbacks of the user's could assign to variables while training goes on."""
    return any(may_change_weights(each, WHILE_TRAINING) for each in callbacks)


class Reading:
    """All that is reachable from some methods of an object."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._root = _root(type(of).__module__)
        self._functions: dict[CodeType, FunctionType] = {}
        self._names: set[str] = set()
        self._owners: dict[int, Any] = {id(of): of}
        self._looked_up: set[tuple[int, str]] = set()
        self._unread = self._foreign = False

    def method(self, name: str) -> None:
        """Begins to read at a method, if the user has written it."""
        for function in written_methods(self._of, name):
            self._found(function)

    def changes_weights(self) -> bool:
        """Reads on until that is found or nothing is left to read."""
        before: tuple[int, ...] = ()
        while not self._could_change() and before != (before := self._size()):
            for owner in list(self._owners.values()):
                for name in list(self._names):
                    self._look_up(owner, name)
        return self._could_change()

    def everything(self) -> list[FunctionType]:
        """Reads on until nothing is left to read; returns all functions."""
        before: tuple[int, ...] = ()
        while before != (before := self._size()) and len(self._functions) <= _MOST:
            for owner in list(self._owners.values()):
                for name in list(self._names):
                    self._look_up(owner, name)
        return list(self._functions.values())

    @property
    def names(self) -> set[str]:
        """What they name."""
        return self._names

    @property
    def objects(self) -> list[Any]:
        """The user's objects and classes whose methods they may call."""
        return [
            owner for owner in self._owners.values() if not _is(owner, ModuleType) and owner is not self._of
        ]

    @property
    def unread(self) -> bool:
        """Whether there was code that cannot be read."""
        return self._unread

    def _size(self) -> tuple[int, ...]:
        return len(self._functions), len(self._names), len(self._owners)

    def _could_change(self) -> bool:
        if self._unread or self._names & _CHANGING:
            return True
        return self._foreign and not self._names.isdisjoint({"model", "_model"})

    def _look_up(self, owner: Any, name: str) -> None:
        if (id(owner), name) in self._looked_up:
            return
        self._looked_up.add((id(owner), name))
        if _is(owner, ModuleType):
            self._found(vars(owner).get(name))
            return
        kind = owner if _is(owner, type) else type(owner)
        if kind is not owner:
            self._found(attributes(owner).get(name))
        for each in kind.__mro__:
            if not _is_of(each.__module__, _HARMLESS):
                self._found(vars(each).get(name))
        if owner is self._of and name in ("model", "_model", "optimizer"):
            model = (
                keras.callbacks.Callback.model.fget(owner) if _is(owner, keras.callbacks.Callback) else owner
            )
            self._own(attributes(model).get("optimizer") if name == "optimizer" else model)

    def _found(self, value: Any) -> None:
        """A value that code names."""
        if _is(value, (staticmethod, classmethod, MethodType)):
            self._found(value.__func__)
            value = value.__self__ if _is(value, MethodType) else None
        if _is(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._found(each)
        elif _is(value, property):
            self._found(value.fget)
            self._found(value.fset)
        elif _is(value, FunctionType):
            self._read(value)
        elif _is(value, ModuleType):
            self._of_module(value, value.__name__)
        elif _is(value, BuiltinFunctionType):
            self._unread |= not _is_of(value.__module__ or "builtins", _HARMLESS)
        elif type(value) in (list, tuple, set, frozenset, dict):
            for each in itertools.islice(value.values() if type(value) is dict else value, _MOST):
                self._own(each)
        else:
            self._own(value)

    def _own(self, value: Any) -> None:
        """An object, or a class, whose methods may be called."""
        kind = value if _is(value, type) else type(value)
        if _is(value, (FunctionType, MethodType, functools.partial)):
            self._found(value)
        elif issubclass(kind, keras.callbacks.SwapEMAWeights):
            self._unread = True
        elif any(not _is_of(each.__module__, _HARMLESS) for each in kind.__mro__):
            self._owners.setdefault(id(value), value)
            self._names |= {"__init__"} if kind is value else {"__call__"}
            self._of_module(None, kind.__module__)

    def _of_module(self, module: ModuleType | None, name: str) -> None:
        """A module of the user's is read; one of another package could do what it likes with the model that it gets."""
        if _is_of(name, _HARMLESS):
            return
        if _root(name) != self._root and _is_installed(_root(name)):
            self._foreign = True
        elif module is not None:
            self._owners.setdefault(id(module), module)

    def _read(self, function: FunctionType) -> None:
        self._found(vars(function).get("__wrapped__"))
        if function.__code__ in self._functions or _is_of(function.__module__, _HARMLESS):
            return
        self._functions[function.__code__] = function
        self._unread |= len(self._functions) > _MOST
        self._names |= names_in(function.__code__)
        for value in (*enclosed(function).values(), *(function.__defaults__ or ())):
            self._found(value)
        self._of_module(None, function.__module__ or "")
        for opname, name in _loads(function.__code__):
            if opname == "IMPORT_NAME":
                module = sys.modules.get(name)
                self._unread |= module is None and not _is_of(name, _HARMLESS)
                self._found(module)
            elif name in function.__globals__:
                self._found(function.__globals__[name])
            elif not hasattr(builtins, name):
                self._unread = True


def written_methods(of: Any, name: str) -> Iterator[Any]:
    """Yields what is called as a method of an object, and what that could call of its base classes.

    Keras' own functions are not among them.
    """
    if (given := attributes(of).get(name)) is not None:
        yield given
    for kind in type(of).__mro__:
        if name in vars(kind) and not _is_of(kind.__module__, {"keras"}):
            yield vars(kind)[name]


def names_in(code: CodeType) -> set[str]:
    """Returns what code, and code that is defined in it, names; texts too, as `getattr` may be given them."""
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= names_in(each)
        elif isinstance(each, str) and each.isidentifier():
            found.add(each)
    return found


def enclosed(function: FunctionType) -> Mapping[str, Any]:
    """Returns the variables of an enclosing function that a function uses."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    return found


def _loads(code: CodeType) -> Iterator[tuple[str, str]]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
            yield instruction.opname, str(instruction.argval)
    for each in code.co_consts:
        if isinstance(each, CodeType) and "__qualname__" not in each.co_names:  # Not the body of a class.
            yield from _loads(each)


def attributes(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object without asking it."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Whether a value is one of those; a stand-in for another object, which would load it, is not asked."""
    return issubclass(type(value), kinds)


def _root(module: str) -> str:
    return module.partition(".")[0]


def _is_of(module: str | None, packages: Iterable[str]) -> bool:
    return _root(module or "") in packages and module != "__main__"


@functools.cache
def _is_installed(root: str) -> bool:
    """Whether a package is one that was installed, and not a file of the user's program."""
    module = sys.modules.get(root)
    return module is not None and is_installed(str(vars(module).get("__file__") or ""))
