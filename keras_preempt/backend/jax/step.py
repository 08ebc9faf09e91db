"""The training step of a fit on JAX, which is compiled when it runs first and makes no variables.

A compiled step keeps what Python code has drawn while it was traced. Keras' own random numbers come from variables.
"""

from __future__ import annotations

from typing import Any

from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.keras.random_code import may_draw
from keras_preempt.backend.keras.running_fit import TracedStep
from keras_preempt.backend.operations import RandomOperation

_OF_STEP = ("train_step", "compute_loss", "compute_metrics", "test_step")
_OF_KERAS = "keras."


class JaxStep(TracedStep):
    """The step of a fit, which is not traced before it runs. All that it reads besides the model is a constant."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.keeps_variables = bool(model.jit_compile) and not model.run_eagerly

    def random_operations(self) -> list[RandomOperation]:
        """Returns the user's functions in a compiled step and validation step whose draws a restart may not repeat."""
        if not self.keeps_variables:
            return []  # Not compiled, it draws in every step, from states that are saved.
        kind: Any = type(self.model)
        layers: list[Any] = [type(layer) for layer in layers_of(self.model)]
        functions = [(name, getattr(kind, name), kind) for name in _OF_STEP]
        for owner in dict.fromkeys(layers):
            if not f"{owner.__module__}.".startswith(_OF_KERAS):
                functions.append((f"{owner.__name__}.call", owner.call, owner))
        return [
            RandomOperation("PyFunc", where)
            for where, function, owner in functions
            if may_draw(function, owner)
        ]
