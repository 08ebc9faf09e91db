"""Which layers and variables are trained, where callbacks change that while training goes on.

A traced training step keeps what was trainable when it was traced, and its optimizer was built for that: in plain Keras
it does not train a layer that a callback unfreezes later. So a restarted process traces its step with what was
trainable then, and goes on with what was trainable at the save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.user_code import is_a


class TrainedLayers:
    """What is trained of a model in one fit; without a model, no callback changes that, and nothing is kept."""

    def __init__(self, model: keras.Model | None) -> None:
        self._model = model
        self._traced: str | None = None

    def epoch_has_begun(self) -> None:
        """The other callbacks have begun an epoch; in the first one, the step is traced next."""
        if self._model is not None and self._traced is None:
            self._traced = self._now()

    def capture(self) -> dict[str, Any] | None:
        return None if self._model is None else {"traced": self._traced, "now": self._now()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self._set(state["now"])

    @contextlib.contextmanager
    def as_traced(self, state: Mapping[str, Any]) -> Iterator[None]:
        """In the block, what is trained is what was when the saved step was traced; then what was at the save."""
        self._traced = state["traced"]
        self._set(self._traced)
        try:
            model = self._model  # None if the script has lost the callback since.
            if model is not None and model.run_eagerly and is_a(model.optimizer, keras.optimizers.Optimizer):
                model.optimizer.build(model.trainable_variables)  # No trace does it.
            yield
        finally:
            self.restore(state)

    def _parts(self) -> list[Any]:
        return [] if self._model is None else [*layers_of(self._model), *self._model.weights]

    def _now(self) -> str:
        return "".join("01"[bool(part.trainable)] for part in self._parts())

    def _set(self, flags: str | None) -> None:
        parts = self._parts()
        if flags is None or len(flags) != len(parts):
            return  # Some layers were not built yet, or are not now: the first step builds them.
        for _ in range(2):  # Setting a layer sets those in it, too.
            for part, flag in zip(parts, flags, strict=True):
                if part.trainable != (flag == "1"):
                    part.trainable = flag == "1"
