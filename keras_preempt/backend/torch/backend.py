"""The torch backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import torch

from keras_preempt.backend import seam
from keras_preempt.backend.describing import described
from keras_preempt.backend.determinism import OF_TORCH
from keras_preempt.backend.keras.first_use import FirstUse
from keras_preempt.backend.keras.model_parts import layers_of, named_attributes
from keras_preempt.backend.place import Place
from keras_preempt.backend.torch import random_states
from keras_preempt.backend.torch.errors import TorchErrors
from keras_preempt.backend.torch.feed import TorchFeed
from keras_preempt.backend.torch.place import check_alone, neighbours
from keras_preempt.backend.torch.running_fit import TorchFit, TorchStep, sums_gradients
from keras_preempt.backend.torch.variables import TorchVariables
from keras_preempt.backend.torch.workers import keep_deaf
from keras_preempt.checkpoint.tensors import Array


class TorchBackend(seam.Backend):
    """Where torch differs from one process that trains by itself; see `seam.Backend`."""

    name = "torch"
    variables = TorchVariables()
    errors = TorchErrors()
    feed = TorchFeed
    fit = TorchFit
    keeps_global_draws = True
    neighbours = staticmethod(neighbours)
    named_in_runs = "torch"  # It counts an optimizer's steps in the type that JAX does.

    def versions(self) -> dict[str, str]:
        return {"keras": keras.__version__, "torch": torch.__version__, "numpy": np.__version__}

    def repair(self) -> Callable[[], None]:
        check_alone()  # When a callback is made, and when fit is called.
        return keep_deaf()

    def place(self, strategy: Any) -> Place:
        check_alone()
        return super().place(strategy)

    def unordered_sums(self) -> str:
        on_gpu = keras.ops.zeros(()).device.type != "cpu"
        return OF_TORCH.cure if on_gpu and not torch.are_deterministic_algorithms_enabled() else ""

    def random_states(self) -> dict[str, Array]:
        return random_states.states()

    def restore_random_states(self, states: Mapping[str, Array]) -> None:
        random_states.restore(states)

    def described(self, model: Any) -> str:
        """See `seam.Backend.described`. A module of torch describes itself by a pickle of all that it holds."""
        if any(type(layer).__name__ == "TorchModuleWrapper" for layer in model._flatten_layers()):
            raise ValueError("A module of torch in the model has no description that is data alone.")
        return described(model)

    def trace(self, model: Any, dataset: Any, *, early: bool = True, again: bool = False) -> TorchStep | None:
        """See `seam.Backend.trace`: nothing is traced, but what a step of Keras' own uses is there before it runs."""
        return TorchStep(model) if type(model).train_step is keras.Model.train_step else None

    def unkept(self, model: Any) -> list[str]:
        """See `seam.Backend.unkept`: state of torch's own optimizers, and gradients over several steps."""
        found = [
            f"the state of {type(value).__name__} in {layer.name}.{name}"
            for layer in layers_of(model)
            for name, value in named_attributes(layer)
            if isinstance(value, torch.optim.Optimizer)
        ]
        if sums_gradients(type(model).train_step):
            found.append(
                "gradients that train_step sums over several steps, if it does not clear them in each"
            )
        return found

    def watch_first_use(self, known: Iterable[Any], look: Callable[[Any], bool]) -> Callable[[], None]:
        return FirstUse(known, look, torch.no_grad).stop


BACKEND = TorchBackend()
