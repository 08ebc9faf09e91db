"""What the hooks of users' callbacks set outside of the callback, read from their code.

A training step that is traced keeps the Python values that it reads while it is traced. A hook may set one: an
attribute of the model, of its loss or a layer, a global variable. If it does so before the first step, a trace from
before that is outdated. If it does so later, the running step keeps the value of its first run, while a restarted
process traces the step with the value that is set by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import FunctionType

import keras

from keras_preempt.state import callback_code
from keras_preempt.state.changed_names import BY_NAME, set_by

_TRACING = frozenset({"compile", "make_train_function", "train_function"})
"""Names without which a callback does not have a step traced anew."""


def before_first_step(callbacks: Iterable[keras.callbacks.Callback]) -> list[str]:
    """Returns what callbacks could set outside of themselves before the first step, as "kl_weight (in Annealing)"."""
    return _set_outside(callbacks, callback_code.BEFORE_FIRST_STEP, variables=True)


def may_be_trainable(found: Iterable[str]) -> bool:
    """Whether what callbacks set may be which variables are trained."""
    return any(each.startswith(("trainable ", BY_NAME)) for each in found)


def change_what_is_trained(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Whether callbacks could change which variables are trained, before the last step of a fit."""
    return may_be_trainable(_set_outside(callbacks, callback_code.WHILE_TRAINING, variables=False))


def while_training(callbacks: Iterable[keras.callbacks.Callback]) -> list[str]:
    """Returns what attributes of other objects callbacks could set before the last step, in the same words.

    What is trained is not among them: it is kept, see `TrainedLayers`; unless it is set right before a step, or a
    callback may have the step traced anew.
    """
    found = _set_outside(callbacks, callback_code.WHILE_TRAINING, variables=False)
    kept = {each for each in found if each.startswith("trainable ")}
    if kept:
        kept.difference_update(_set_outside(callbacks, callback_code.BEFORE_STEP, variables=False))
        if any(map(_may_trace_anew, callbacks)):
            kept.clear()
    return [each for each in found if each not in kept]


def _may_trace_anew(callback: keras.callbacks.Callback) -> bool:
    reading = callback_code.Reading(callback, callback_code.WHILE_TRAINING)
    reading.everything()  # Also what hooks call.
    return not _TRACING.isdisjoint(reading.names)


def _set_outside(
    callbacks: Iterable[keras.callbacks.Callback], hooks: Collection[str], *, variables: bool
) -> list[str]:
    found = set()
    for callback in callbacks:
        methods = [each for kind in type(callback).__mro__ for each in vars(kind).values()]
        own = {id(each.__code__) for each in methods if isinstance(each, FunctionType)}
        for function in callback_code.Reading(callback, hooks).everything():
            code = function.__code__
            this = code.co_varnames[0] if id(code) in own and code.co_argcount else None
            for name, is_variable in set_by(code, this):
                if variables or not is_variable:
                    found.add(f"{name} (in {type(callback).__name__})")
    return sorted(found)
