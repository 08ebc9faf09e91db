"""The running `fit` of a model on torch, and its step; see `keras_preempt.backend.keras.running_fit`.

Verified with Keras 3.15.1 and torch 2.6.0 to 2.15.0; tests/backend/torch/test_step.py has the private names of torch.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import keras
import torch

from keras_preempt.backend.bytecode import names_in, stored_attributes
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.keras.running_fit import RunningFit, TracedStep
from keras_preempt.backend.torch.feed import TorchFeed

_LIBRARIES = ("keras", "torch", "builtins")

_REMEMBERS = "the code of the model keeps what it remembers in variables, or in buffers of torch's modules"

_COMPILED = (
    "torch compiles the training step and the modules in it after a restart to the same code, which it may not where "
    "the shapes of batches differ (use drop_last=True)"
)

_HOOKS = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}
"""The hooks of a step, and what each calls that a callback does not have."""


def _has_own(callback: Any, name: str) -> bool:
    """Whether the hook of a callback, if it is not of this package, is another one than that of the base class."""
    function = getattr(getattr(callback, name, None), "__func__", None)
    ours = type(callback).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not ours and function is not getattr(keras.callbacks.Callback, name)


def sums_gradients(train_step: Any) -> bool:
    """Whether a training step takes gradients and names nothing that clears them."""
    code = getattr(inspect.unwrap(train_step), "__code__", None)
    named = set() if code is None else names_in(code)
    return "backward" in named and named.isdisjoint({"zero_grad", "train_step"})


_ONCE = ("__init__", "build", "compile", "get_config", "from_config")
"""Methods that no step calls."""

_KEEPING = {"append", "extend", "insert", "setdefault", "setattr"}


def _remembers(kind: type) -> bool:
    """Whether methods that a step may call keep something in attributes, as far as the code of a class shows."""
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in _LIBRARIES]
    functions: list[Any] = [
        value.fget if isinstance(value, property) else value
        for base in own
        for name, value in vars(base).items()
        if name not in _ONCE and isinstance(value, (FunctionType, property))
    ]
    codes = [
        inspect.unwrap(function).__code__ for function in functions if isinstance(function, FunctionType)
    ]
    return any(stored_attributes(code) or names_in(code) & _KEEPING for code in codes)


def _modules(model: Any) -> list[tuple[str, torch.nn.Module]]:
    # Of each layer for itself: a model of Keras does not register its layers with torch.
    return [each for layer in layers_of(model) for each in torch.nn.Module.named_modules(layer)]


def is_compiled(model: Any) -> bool:
    """Whether torch compiles the training step, or modules in the model by `torch.compile` or their `compile()`."""
    if model.jit_compile and not model.run_eagerly:
        return True
    return any(
        path.rpartition(".")[2] == "_orig_mod" or module._compiled_call_impl is not None
        for path, module in _modules(model)
    )


class TorchStep(TracedStep):
    """The step of a fit, which runs as Python code: what it draws comes from generators whose states are saved."""

    def __init__(self, model: Any) -> None:
        own = any(_remembers(kind) for kind in {type(module) for _, module in _modules(model)})
        self.condition = _REMEMBERS if own else ""


class TorchFit(RunningFit):
    """See `RunningFit`. Keras' loop over the batches runs the steps and their hooks itself, outside of its iterator."""

    def __init__(self, model: Any, variables: Mapping[str, Any], feed: Callable[[Any], InputFeed]) -> None:
        super().__init__(model, variables, feed)
        self._container = weakref.ref(variables["callbacks"])
        if isinstance(self.feed, TorchFeed):
            self.feed.records = True
            self.feed.knows(self.validation_data)

    @property
    def condition(self) -> str:
        """See `RunningFit.condition`: torch may compile a `train_step` of the user's own, too."""
        compiled = _COMPILED if is_compiled(self._model) else ""
        return " and ".join(filter(None, (compiled, super().condition)))

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        """See `RunningFit.guard`. Ours settle errors in their hooks of a step, and most of the others have none there.

        So what costs time in each step is put around only those that a callback has.
        """
        unguarded = super().guard(settle)
        model, container = self._model, self._container
        train_function = model.train_function
        callbacks = self._frame_callbacks.callbacks
        hooks = [
            name
            for name, inner in _HOOKS.items()
            if any(_has_own(each, one) for each in callbacks for one in (name, inner))
        ]

        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return train_function(*args, **kwargs)
            except BaseException as error:
                if (raised := settle(error)) is error:
                    raise
                raise raised from error

        def hook(name: str) -> Callable[..., Any]:
            function = getattr(type(container()), name)

            def called(batch: int, logs: Any = None) -> Any:
                try:
                    return function(container(), batch, logs)  # The container must not hold itself.
                except BaseException as error:
                    if (raised := settle(error)) is error:
                        raise
                    raise raised from error

            return called

        model.train_function = guarded
        for name in hooks:
            vars(container())[name] = hook(name)

        def end() -> None:
            unguarded()
            if model.train_function is guarded:
                model.train_function = train_function
            for name in hooks:
                vars(container() or self).pop(name, None)

        return end
