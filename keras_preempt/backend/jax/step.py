"""The training step of a fit on JAX, which is compiled when it runs first and makes no variables.

A compiled step keeps what Python code has drawn while it was traced. Keras' own random numbers come from variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.keras.random_code import may_draw
from keras_preempt.backend.keras.running_fit import TracedStep
from keras_preempt.backend.operations import RandomOperation

_OF_STEP = ("train_step", "compute_loss", "compute_metrics")
_OF_KERAS = "keras."


class JaxStep(TracedStep):
    """The step of a fit, which is not looked at before it runs. All that it reads besides the model is a constant."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def keeps_variables(self) -> bool:
        """Whether the value that a variable outside of the model has in its first run is a constant to it."""
        return bool(self.model.jit_compile) and not self.model.run_eagerly

    def random_operations(self) -> list[RandomOperation]:
        """Returns the user's functions in a compiled step and validation step whose draws a restart may not repeat."""
        if not self.keeps_variables:
            return []  # It draws in every step, from states that are saved.
        functions = _functions(self.model)
        return [
            RandomOperation("PyFunc", where)
            for where, function, owner in functions
            if may_draw(function, owner)
        ]


def _functions(model: Any) -> Iterator[tuple[str, Any, type]]:
    kind = type(model)
    for name in (*_OF_STEP, "test_step"):
        yield name, getattr(kind, name), kind
    seen: set[type] = set()
    for layer in layers_of(model):
        owner = type(layer)
        if owner not in seen and not f"{owner.__module__}.".startswith(_OF_KERAS):
            seen.add(owner)
            yield f"{owner.__name__}.call", owner.call, owner
