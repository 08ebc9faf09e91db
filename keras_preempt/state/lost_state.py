"""Whether an error of a resumed fit may come from state of a callback that was not kept over the restart."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType

import keras

from keras_preempt.backend.bytecode import within
from keras_preempt.backend.user_code import attributes, is_of_keras


def missed_by(
    error: BaseException,
    named: Sequence[tuple[keras.callbacks.Callback, str]],
    without_methods: Mapping[str, keras.callbacks.Callback],
) -> list[str]:
    """Returns in words what of callbacks was not kept, of those in whose code an error was raised.

    Args:
        error: The error, on its way out of the fit.
        named: Callbacks and what of each is not kept, as it was said before the first step.
        without_methods: The user's callbacks without get_state and set_state, by name. An attribute that one of them
            set in an earlier start, and that was not kept, may be missing altogether.
    """
    if not isinstance(error, Exception):  # Such as Ctrl-C, wherever it comes.
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
    """The code of its methods, and of functions that it holds."""
    kinds = [vars(kind) for kind in type(callback).__mro__ if not is_of_keras(kind)]
    return {
        code for held in (*kinds, attributes(callback)) for value in held.values() for code in _codes(value)
    }


def _codes(value: object) -> Iterator[CodeType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        for each in (value.fget, value.fset):
            yield from _codes(each)
    elif isinstance(value, FunctionType):
        yield from within(value.__code__)
        yield from _codes(vars(value).get("__wrapped__"))
