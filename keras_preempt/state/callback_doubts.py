"""What of the state of a user's callback cannot be kept, in words, as far as its attributes and its code show it."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType

import keras

from keras_preempt.backend.bytecode import stored_attributes
from keras_preempt.backend.user_code import attributes, enclosed, is_a, is_of_keras
from keras_preempt.state.attribute_values import CONTAINERS
from keras_preempt.state.attributes import Attributes, is_same_in_each_start
from keras_preempt.state.callback_code import Reading
from keras_preempt.state.callback_cure import LAMBDA
from keras_preempt.state.changed_names import MUTATORS, changed_outside
from keras_preempt.state.used_variables import Held, Used, are_held, used, variables

_GOING_ON = (io.IOBase, threading.Thread, keras.Variable, keras.Metric)
"""Types of values that change without being set."""


def unkept(
    callback: keras.callbacks.Callback, kept: Attributes, name: str, held: Held = lambda variable: False
) -> Iterator[str]:
    """Yields what of a callback's state is lost in a restart, or may be: the name of its class, and what it is.

    Args:
        callback: One of the user's, without get_state and set_state.
        kept: The attributes that are kept.
        name: How they call it.
        held: Whether a checkpoint has the value of a variable.
    """
    reading = Reading(callback, _hooks(callback))
    functions = [each for each in reading.everything() if each.__name__ != "__init__"]
    lost = [each for each in used(callback, reading) if not are_held(each.value, held)]
    if not reading.changes_weights():
        lost = [each for each in lost if each.of is callback and is_a(each.value, *_GOING_ON)]
    found = [
        *_attributes(reading, functions, kept, name, {each.name for each in lost if each.of is callback}),
        *_objects(reading, functions, callback, lost),
        *_outside(functions, kept, lost),
    ]
    if reading.unread:
        found.append("code that cannot be read")
    yield from (f"{_title(callback)}{each})" for each in dict.fromkeys(found))


def _hooks(callback: keras.callbacks.Callback) -> set[str]:
    own = {name for kind in type(callback).__mro__ if not is_of_keras(kind) for name in vars(kind)}
    return {name for name in {*own, *attributes(callback)} if name.startswith("on_")}


def _attributes(
    reading: Reading, functions: list[FunctionType], kept: Attributes, name: str, lost: set[str]
) -> Iterator[str]:
    stored = set().union(*(stored_attributes(each.__code__) for each in functions))
    names = reading.names
    for attribute, (value, kind) in kept.not_plain(name).items():
        if attribute not in names or (is_same_in_each_start(value) and not {attribute} & (stored | lost)):
            continue
        mutable = type(value) in CONTAINERS and not names.isdisjoint(MUTATORS)
        goes_on = is_a(value, *_GOING_ON, Iterator) and not variables(value)
        if attribute in stored | lost or mutable or goes_on:
            yield f"its attribute {attribute}: {kind}"


def _objects(
    reading: Reading, functions: list[FunctionType], callback: object, lost: Sequence[Used]
) -> Iterator[str]:
    loses = {id(each.of) for each in lost}
    changing = {each.__code__ for each in functions if _changes_something(each)}
    for each in reading.objects:
        kind = type(each)
        if issubclass(kind, (type, keras.Layer, keras.optimizers.Optimizer, keras.callbacks.Callback)):
            continue
        methods = [value for base in kind.__mro__ for value in vars(base).values()]
        changed = any(isinstance(method, FunctionType) and method.__code__ in changing for method in methods)
        if changed or id(each) in loses:
            yield f"an object that it uses: {kind.__name__}"


def _changes_something(function: FunctionType) -> bool:
    return bool(stored_attributes(function.__code__)) or not MUTATORS.isdisjoint(function.__code__.co_names)


def _outside(functions: list[FunctionType], kept: Attributes, lost: Sequence[Used]) -> Iterator[str]:
    yield from (f"the variable {each.name} outside of it" for each in lost if each.of is None)
    for function in functions:
        for name, value in changed_outside(function, enclosed(function)):
            if value is None or not kept.is_kept(value):
                yield f"the variable {name} outside of it"


def _title(callback: keras.callbacks.Callback) -> str:
    """Returns how a callback is called in front of what is not kept of it, with an open bracket.

    Nobody finds a LambdaCallback by the name of its class, so its functions are named as well: "LambdaCallback
    (on_epoch_end at train.py:60: ".
    """
    if type(callback) is not keras.callbacks.LambdaCallback:
        return f"{type(callback).__name__} ("
    functions = [
        f"{name} at {Path(value.__code__.co_filename).name}:{value.__code__.co_firstlineno}"
        for name, value in attributes(callback).items()
        if name.startswith("on_") and isinstance(value, FunctionType)
    ]
    return f"{LAMBDA}{', '.join(functions)}{': ' if functions else ''}"
