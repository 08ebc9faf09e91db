"""The training step of a fit on JAX, which is compiled when it runs first and makes no variables.

A compiled step keeps what Python code has drawn while it was traced. Keras' own random numbers come from variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.keras.random_code import may_draw

_OF_STEP = ("train_step", "compute_loss", "compute_metrics")
_OF_KERAS = "keras."


@dataclass(frozen=True)
class PythonCode:
    """Code of the user in a step that refers to random numbers outside of Keras.

    Attributes:
        where: Which function.
        kind: As for a function of TensorFlow that runs Python code.
        resource: None.
    """

    where: str
    kind: str = "PyFunc"
    resource: Any = None


class Step:
    """The step of a fit, which is not looked at before it runs.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def keeps_variables(self) -> bool:
        """Whether the value that a variable outside of the model has in its first run is a constant to it."""
        return bool(self.model.jit_compile) and not self.model.run_eagerly

    @property
    def variables(self) -> Sequence[Any]:
        """None: what else it reads is a constant to it."""
        return ()

    @property
    def changed_variables(self) -> Sequence[Any]:
        """None that the model does not hold: a step can change no others."""
        return ()


def trace(model: Any, dataset: Any, *, early: bool = True, again: bool = False) -> Step:
    """Returns the step of a running fit; it is traced when it runs first, with the values of then."""
    return Step(model)


def traced_validation(model: Any, dataset: Any) -> None:
    """Returns None: see `validation_may_draw`."""


def validation_may_draw(model: Any) -> bool:
    """Returns False: `stateful_random_operations` looks at the validation step as well."""
    return False


def stateful_random_operations(traced: Step) -> list[PythonCode]:
    """Names the user's functions in a compiled step whose draws a restart may not repeat."""
    model = traced.model
    if model.run_eagerly or not model.jit_compile:
        return []  # It draws in every step, from states that are saved.
    return [PythonCode(where) for where, function, owner in _functions(model) if may_draw(function, owner)]


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
