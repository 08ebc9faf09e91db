"""What the code of a user's callback could do, read from it without calling anything.

A hook is read together with all that it names: methods of its class and of the objects that the callback holds,
functions of its module and of others of the user's, what lambdas and decorators enclose. Names are not resolved to
objects, so more is found than is there; code that cannot be read could do anything.

A traced training step keeps the Python values that it read while it was traced. A hook may set one: an attribute of
the model, of its loss or a layer, a global variable. If it does so before the first step, an earlier trace is outdated.
If it does so later, the running step keeps the value of its first run, while a restarted process traces the step with
the value that is set by then.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import keras

from keras_preempt.backend.bytecode import instructions_within, names_in
from keras_preempt.backend.keras.callbacks import variables_of
from keras_preempt.backend.seam import backend
from keras_preempt.backend.user_code import attributes, enclosed, is_a, is_installed
from keras_preempt.state.changed_names import BY_NAME, set_by

TEST_HOOKS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
"""The hooks of a validation."""

BEGIN_HOOKS = ("on_train_begin", "on_epoch_begin")
"""Those that Keras calls again before the first step of a restarted process."""

BEFORE_STEP = ("on_train_batch_begin", "on_batch_begin")
"""Those that Keras calls right before a step."""

BEFORE_FIRST_STEP = ("set_model", "set_params", *BEGIN_HOOKS, *BEFORE_STEP)
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
        *("set_value", "variables", "weights", "trainable_variables", "trainable_weights"),
        *("non_trainable_variables", "non_trainable_weights", "moving_average", "get_variable"),
        *("apply", "apply_gradients", "stateless_apply", "minimize", "build_from_config"),
        *("fit", "train_on_batch", "train_step", "train_function", "SwapEMAWeights", "exec", "eval"),
    }
)
"""Without one of these names, code hardly changes weights."""

_HARMLESS = frozenset(
    {
        *sys.stdlib_module_names,
        *("keras", "tensorflow", "numpy", "jax", "jaxlib", "torch", "pandas", "scipy", "sklearn", "skimage"),
        *("h5py", "matplotlib", "seaborn", "PIL", "cv2", "tqdm", "rich", "wandb", "mlflow", "absl"),
        "keras_preempt",
    }
)
"""Packages that change weights only by those names."""

TRACING = frozenset({"compile", "make_train_function", "train_function"})
"""Without one of these names, a callback has no step traced anew."""

_MOST = 500
"""The most functions that are read."""


class Used(NamedTuple):
    """Something that code uses and that is a variable, or has variables: a layer, a list or dictionary of these."""

    name: str
    value: Any
    of: Any = None  # The object of which it is an attribute; None for a variable of a function or the script.


class HookCode:
    """All code of the user's that some methods reach, of a callback that `fit` has given its model, or of a model.

    `names` is what the code names, and `objects` are the user's objects and classes whose methods it may call. `unread`
    says whether some of it cannot be read, `may_change_weights` whether it could change weights or assign to variables.
    """

    def __init__(self, of: Any, methods: Collection[str]) -> None:
        self._of = of
        self._root = _root(type(of).__module__)
        self._by_code: dict[CodeType, FunctionType] = {}
        self.names: set[str] = set()
        self._owners: dict[int, Any] = {id(of): of}
        self._looked_up: dict[int, set[str]] = {}
        self.unread = self._foreign = False
        written = [vars(each) for each in type(of).__mro__ if not _is_of(each.__module__, {"keras"})]
        for place in (attributes(of), *written):
            for name in methods:
                self._found(place.get(name))
        size = 0, 0, 0
        while len(self._by_code) <= _MOST:
            if size == (size := (len(self._by_code), len(self.names), len(self._owners))):
                break
            for owner in list(self._owners.values()):
                self._look_up(owner)
        self.functions = list(self._by_code.values())
        self.objects = [
            each for each in self._owners.values() if not is_a(each, ModuleType) and each is not of
        ]
        gives_model = self._foreign and not self.names.isdisjoint({"model", "_model"})
        self.may_change_weights = self.unread or gives_model or not self.names.isdisjoint(_CHANGING)

    def set_outside(self, *, variables: bool) -> set[str]:
        """Returns what it sets of other objects, as "kl_weight (in Annealing)"; variables of the script if asked."""
        methods = [each for kind in type(self._of).__mro__ for each in vars(kind).values()]
        own = {id(each.__code__) for each in methods if isinstance(each, FunctionType)}
        found = set()
        for code in self._by_code:
            this = code.co_varnames[0] if id(code) in own and code.co_argcount else None
            for name, is_variable in set_by(code, this):
                if variables or not is_variable:
                    found.add(f"{name} (in {type(self._of).__name__})")
        return found

    def uses_variables(self) -> Iterator[Used]:
        """Yields what it uses that is a variable, or has variables. A training step may read these as well."""
        for owner in (self._of, *self.objects):
            for name, value in attributes(owner).items():
                if name in self.names and name != "_model" and variables_in(value):
                    yield Used(name, value, owner)
        for function in self.functions:
            outside = list(enclosed(function).items())
            for step in instructions_within(function.__code__, classes=False):
                if step.does == "LOAD_GLOBAL" and step.name in function.__globals__:
                    outside.append((step.name, function.__globals__[step.name]))
            yield from (Used(name, value) for name, value in outside if variables_in(value))

    def _look_up(self, owner: Any) -> None:
        """Looks for what an object, class or module has under the names that were not looked for yet."""
        names = self.names - self._looked_up.get(id(owner), set())
        self._looked_up[id(owner)] = self.names.copy()
        kind = owner if is_a(owner, type) else type(owner)
        if is_a(owner, ModuleType):
            places = [vars(owner)]
        else:
            places = [attributes(owner)] if kind is not owner else []
            places += [vars(each) for each in kind.__mro__ if not _is_of(each.__module__, _HARMLESS)]
        for place in places:
            for name in place.keys() & names:
                self._found(place.get(name))
        if owner is self._of:
            callback = is_a(owner, keras.callbacks.Callback)
            model = keras.callbacks.Callback.model.fget(owner) if callback else owner
            if not names.isdisjoint({"model", "_model"}):
                self._own(model)
            if "optimizer" in names:
                self._own(attributes(model).get("optimizer"))

    def _found(self, value: Any) -> None:
        """Takes a value that code names."""
        if is_a(value, staticmethod, classmethod, MethodType):
            self._found(value.__func__)
            value = value.__self__ if is_a(value, MethodType) else None
        if is_a(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._found(each)
        elif is_a(value, property):
            self._found(value.fget)
            self._found(value.fset)
        elif is_a(value, FunctionType):
            self._read(value)
        elif is_a(value, ModuleType):
            self._of_module(value, value.__name__)
        elif is_a(value, BuiltinFunctionType):
            self.unread |= not _is_of(value.__module__ or "builtins", _HARMLESS)
        elif type(value) in (list, tuple, set, frozenset, dict):
            for each in itertools.islice(value.values() if type(value) is dict else value, _MOST):
                self._own(each)
        else:
            self._own(value)

    def _own(self, value: Any) -> None:
        """Takes an object, or a class, whose methods may be called."""
        kind = value if is_a(value, type) else type(value)
        if is_a(value, FunctionType, MethodType, functools.partial):
            self._found(value)
        elif issubclass(kind, keras.callbacks.SwapEMAWeights):
            self.unread = True
        elif any(not _is_of(each.__module__, _HARMLESS) for each in kind.__mro__):
            self._owners.setdefault(id(value), value)
            self.names |= {"__init__"} if kind is value else {"__call__"}
            self._of_module(None, kind.__module__)

    def _of_module(self, module: ModuleType | None, name: str) -> None:
        """Adds a module of the user's; another package could do anything with a model that it is given."""
        if _is_of(name, _HARMLESS):
            return
        if _root(name) != self._root and _is_installed(_root(name)):
            self._foreign = True
        elif module is not None:
            self._owners.setdefault(id(module), module)

    def _read(self, function: FunctionType) -> None:
        self._found(vars(function).get("__wrapped__"))
        if function.__code__ in self._by_code or _is_of(function.__module__, _HARMLESS):
            return
        self._by_code[function.__code__] = function
        self.unread |= len(self._by_code) > _MOST
        self.names |= names_in(function.__code__)
        for value in (*enclosed(function).values(), *(function.__defaults__ or ())):
            self._found(value)
        self._of_module(None, function.__module__ or "")
        for step in instructions_within(function.__code__, classes=False):
            if step.does == "IMPORT_NAME":
                module = sys.modules.get(step.name)
                self.unread |= module is None and not _is_of(step.name, _HARMLESS)
                self._found(module)
            elif step.does == "LOAD_GLOBAL":
                self.unread |= step.name not in function.__globals__ and not hasattr(builtins, step.name)
                self._found(function.__globals__.get(step.name))


def may_be_trainable(found: Iterable[str]) -> bool:
    """Whether what callbacks set may decide which variables are trained."""
    return any(each.startswith(("trainable ", BY_NAME)) for each in found)


def variables_in(value: Any) -> list[Any]:
    """Returns the variables that a value is or has; of a list or a dictionary those of its items."""
    kind = type(value)
    items = value.values() if kind is dict else value if kind in (list, tuple) else (value,)
    is_variable = backend().variables.is_variable
    return [variable for each in items for variable in ((each,) if is_variable(each) else variables_of(each))]


def _root(module: str) -> str:
    return module.partition(".")[0]


def _is_of(module: str | None, packages: Iterable[str]) -> bool:
    return _root(module or "") in packages and module != "__main__"


@functools.cache
def _is_installed(root: str) -> bool:
    """Whether a package is one that was installed, and not a file of the user's program."""
    module = sys.modules.get(root)
    return module is not None and is_installed(str(vars(module).get("__file__") or ""))
