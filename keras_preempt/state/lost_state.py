"""State of users' callbacks that a restart loses, in words: before the first step, and when an error comes from it."""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import keras

from keras_preempt.backend.bytecode import stored_attributes, within
from keras_preempt.backend.user_code import attributes, enclosed, is_a, is_of_keras
from keras_preempt.state.attribute_values import CONTAINERS
from keras_preempt.state.attributes import Attributes, is_same_in_each_start
from keras_preempt.state.callback_code import HookCode, variables_in
from keras_preempt.state.callback_cure import LAMBDA
from keras_preempt.state.changed_names import MUTATORS, changed_outside

_CHANGES_ITSELF = (io.IOBase, threading.Thread, keras.Variable, keras.Metric)
"""Types of values that change without being set."""


def unkept(
    callback: keras.callbacks.Callback, kept: Attributes, name: str, held: Callable[[Any], bool]
) -> list[str]:
    """Returns what of a callback's state a restart loses, or may lose, each as "Counts (its attribute file: TextIO)".

    The callback is a user's without get_state and set_state, which `kept` knows by `name`; `held` says whether a
    checkpoint has the value of a variable.
    """
    own = {each for kind in type(callback).__mro__ if not is_of_keras(kind) for each in vars(kind)}
    code = HookCode(callback, {each for each in {*own, *attributes(callback)} if each.startswith("on_")})
    functions = [each for each in code.functions if each.__name__ != "__init__"]
    lost = [each for each in code.uses_variables() if not all(map(held, variables_in(each.value)))]
    if not code.may_change_weights:
        lost = [each for each in lost if each.of is callback and is_a(each.value, *_CHANGES_ITSELF)]
    stored = set().union(*(stored_attributes(each.__code__) for each in functions))
    stored |= {each.name for each in lost if each.of is callback}
    found = [
        *_attributes(code.names, stored, kept.not_plain(name)),
        *_objects(code, functions, {id(each.of) for each in lost}),
        *(f"the variable {each.name} outside of it" for each in lost if each.of is None),
        *(
            f"the variable {name} outside of it"
            for function in functions
            for name, value in changed_outside(function, enclosed(function))
            if value is None or not kept.is_kept(value)
        ),
        *(["code that cannot be read"] if code.unread else []),
    ]
    title = f"{type(callback).__name__} ("
    if type(callback) is keras.callbacks.LambdaCallback:
        # The name of its class does not tell which one it is, so its functions are named.
        hooks = [
            f"{hook} at {Path(value.__code__.co_filename).name}:{value.__code__.co_firstlineno}"
            for hook, value in attributes(callback).items()
            if hook.startswith("on_") and isinstance(value, FunctionType)
        ]
        title = f"{LAMBDA}{', '.join(hooks)}{': ' if hooks else ''}"
    return [f"{title}{each})" for each in dict.fromkeys(found)]


def _attributes(names: set[str], stored: set[str], not_plain: Mapping[str, tuple[Any, str]]) -> Iterator[str]:
    for attribute, (value, kind) in not_plain.items():
        if attribute not in names or (is_same_in_each_start(value) and attribute not in stored):
            continue
        mutable = type(value) in CONTAINERS and not names.isdisjoint(MUTATORS)
        goes_on = is_a(value, *_CHANGES_ITSELF, Iterator) and not variables_in(value)
        if attribute in stored or mutable or goes_on:
            yield f"its attribute {attribute}: {kind}"


def _objects(code: HookCode, functions: Sequence[FunctionType], losing: set[int]) -> Iterator[str]:
    """Yields the objects whose methods change something, and those whose ids are in `losing`."""
    changing = {
        each.__code__
        for each in functions
        if stored_attributes(each.__code__) or not MUTATORS.isdisjoint(each.__code__.co_names)
    }
    for each in code.objects:
        kind = type(each)
        if issubclass(kind, (type, keras.Layer, keras.optimizers.Optimizer, keras.callbacks.Callback)):
            continue
        methods = [value for base in kind.__mro__ for value in vars(base).values()]
        changed = any(isinstance(method, FunctionType) and method.__code__ in changing for method in methods)
        if changed or id(each) in losing:
            yield f"an object that it uses: {kind.__name__}"


def missed_by(
    error: BaseException,
    named: Sequence[tuple[keras.callbacks.Callback, str]],
    without_methods: Mapping[str, keras.callbacks.Callback],
) -> list[str]:
    """Returns what was not kept of the callbacks in whose code an error was raised, in the words of `unkept`.

    `named` are callbacks and what of each is not kept; `without_methods` the user's callbacks without get_state and
    set_state, by name, of which an attribute that was not kept may be missing altogether.
    """
    if not isinstance(error, Exception):  # Ctrl-C, for example, can come anywhere.
        return []
    passed = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    found = [what for callback, what in named if not passed.isdisjoint(_codes_of(callback))]
    if isinstance(error, AttributeError):
        found += [
            f"{name} (its attribute {error.name})"
            for name, callback in without_methods.items()
            if error.obj is callback and not passed.isdisjoint(_codes_of(callback))
        ]
    return list(dict.fromkeys(found))


def _codes_of(callback: keras.callbacks.Callback) -> set[CodeType]:
    """Returns the code of a callback's methods, and of functions that it holds."""
    kinds = [vars(kind) for kind in type(callback).__mro__ if not is_of_keras(kind)]
    values: list[Any] = [value for held in (*kinds, attributes(callback)) for value in held.values()]
    found: set[CodeType] = set()
    while values:
        value = values.pop()
        if isinstance(value, (staticmethod, classmethod)):
            values.append(value.__func__)
        elif isinstance(value, property):
            values += [value.fget, value.fset]
        elif isinstance(value, FunctionType):
            found.update(within(value.__code__))
            values.append(vars(value).get("__wrapped__"))
    return found
