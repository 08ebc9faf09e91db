"""The variables that the code of a user's callback uses: in its attributes, in objects of the user's, in the script.

A training step may read such a variable as well, such as the weight of a loss. A checkpoint holds it if the model does,
or if TensorFlow shows that the traced step uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import keras

from keras_preempt.backend.bytecode import steps_within
from keras_preempt.backend.keras.callbacks import variables_of
from keras_preempt.backend.seam import backend
from keras_preempt.backend.user_code import attributes, enclosed
from keras_preempt.state.callback_code import WHILE_TRAINING, Reading

Held = Callable[[Any], bool]
"""Whether a checkpoint has the value of a variable."""


@dataclass(frozen=True)
class Used:
    """Something that code uses and that is a variable, or has variables.

    Attributes:
        name: How the code calls it.
        value: The variable, the layer, or a list or dictionary of these.
        of: The object of which it is an attribute; None if it is a variable of a function or the script.
    """

    name: str
    value: Any
    of: Any = None


def used(callback: keras.callbacks.Callback, reading: Reading) -> Iterator[Used]:
    """Yields what the code of a callback uses that is a variable, or has variables.

    Args:
        callback: The callback.
        reading: Its code, of which all has been read.
    """
    for owner in (callback, *reading.objects):
        for name, value in attributes(owner).items():
            if name in reading.names and name != "_model" and variables(value):
                yield Used(name, value, owner)
    for function in reading.everything():
        for name, value in _outside(function):
            if variables(value):
                yield Used(name, value)


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    yield from enclosed(function).items()
    for step in steps_within(function.__code__, classes=False):
        if step.does == "LOAD_GLOBAL" and step.name in function.__globals__:
            yield step.name, function.__globals__[step.name]


def variables(value: Any) -> list[Any]:
    """Returns the variables that a value is or has; of a list or a dictionary those of its items."""
    kind = type(value)
    items = value.values() if kind is dict else value if kind in (list, tuple) else (value,)
    return [variable for each in items for variable in _variables(each)]


def _variables(value: Any) -> Iterable[Any]:
    return (value,) if backend().variables.is_variable(value) else variables_of(value)


def are_held(value: Any, held: Held) -> bool:
    """Whether a checkpoint has all variables of a value."""
    return all(map(held, variables(value)))


def unheld_while_training(callbacks: Iterable[keras.callbacks.Callback], held: Held) -> list[str]:
    """Returns the variables that callbacks could assign to and no checkpoint holds, as "kl_weight (in Annealing)".

    Args:
        callbacks: Those of the fit.
        held: Whether a checkpoint has a variable.
    """
    found = set()
    for callback in callbacks:
        reading = Reading(callback, WHILE_TRAINING)
        reading.everything()
        if reading.changes_weights():
            for each in used(callback, reading):
                if not variables_of(each.value) and not are_held(each.value, held):
                    found.add(f"{each.name} (in {type(callback).__name__})")
    return sorted(found)
