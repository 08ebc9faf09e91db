"""What a user can do about callbacks whose state is not kept over a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import keras

from keras_preempt.backend.user_code import attributes

_OF_OWN = "Give them get_state() and set_state(state); without any state, get_state() returns {}"

_OF_LAMBDAS = (
    "Instead of a LambdaCallback, write a subclass of keras.callbacks.Callback that gathers in its attributes what is "
    "needed later: these are kept"
)

_LAMBDA = f"{keras.callbacks.LambdaCallback.__name__} ("


def title(callback: keras.callbacks.Callback) -> str:
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
    return f"{_LAMBDA}{', '.join(functions)}{': ' if functions else ''}"


def cure(unkept: Sequence[str]) -> str:
    """Returns what to do about callbacks, as sentences without the last full stop.

    Args:
        unkept: The callbacks and what of each is not kept, in words that begin as `title` says.
    """
    lambdas = [each for each in unkept if each.startswith(_LAMBDA)]
    return ". ".join(([_OF_OWN] if len(lambdas) < len(unkept) else []) + ([_OF_LAMBDAS] if lambdas else []))
