"""The running `fit` of a model on JAX, and its step; see `keras_preempt.backend.keras.running_fit`.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_preempt.backend.jax import backlog
from keras_preempt.backend.jax.feed import JaxFeed
from keras_preempt.backend.jax.place import rows_of
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.keras.names import FLUSH, keras_is_from
from keras_preempt.backend.keras.random_code import may_draw
from keras_preempt.backend.keras.running_fit import RunningFit, TracedStep
from keras_preempt.backend.operations import RandomOperation

logger = logging.getLogger("keras_preempt")

_HOOKS = ("on_train_batch_begin", "on_train_batch_end")
_WHOLE_PATHS = keras_is_from("3.14.0")
"""Whether Keras compares a key of a LayoutMap with the whole path of a variable, or looks for it in the path."""

_OF_STEP = ("train_step", "compute_loss", "compute_metrics", "test_step")


class JaxStep(TracedStep):
    """The step of a fit, which is not traced before it runs. All that it reads besides the model is a constant.

    A compiled step keeps what Python code has drawn while it was traced. Keras' own random numbers come from variables.
    """

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
            if not f"{owner.__module__}.".startswith("keras."):
                functions.append((f"{owner.__name__}.call", owner.call, owner))
        return [
            RandomOperation("PyFunc", where)
            for where, function, owner in functions
            if may_draw(function, owner)
        ]


class JaxFit(RunningFit):
    def __init__(self, model: Any, variables: Mapping[str, Any], feed: Callable[[Any], InputFeed]) -> None:
        super().__init__(model, variables, feed)
        self._container = weakref.ref(variables["callbacks"])
        if isinstance(self.feed, JaxFeed):
            self.feed.stub = self.stub
        check_fit(model, self.feed)

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        """See `RunningFit.guard`; also bounds the steps that are queued, while the guard stands."""
        unbound, unguarded = backlog.bound(self._model), super().guard(settle)

        def end() -> None:
            unguarded()
            unbound()

        return end

    def finish_hooks(self) -> None:
        """See `RunningFit.finish_hooks`; raises what they have raised, as Keras does at its next step."""
        if (container := self._container()) is not None:
            getattr(container, FLUSH)()

    def stub(self) -> None:
        """Makes the next step of this fit compute nothing and call no callback."""
        model, container = self._model, self._container()
        train_function = model.train_function

        def nothing(state: Any, iterator: Any) -> Any:
            model.train_function = train_function
            return {}, state

        model.train_function = nothing
        attributes = vars(container)
        for name in _HOOKS:
            # What stands in for the hook removes itself.
            attributes[name] = lambda *_, name=name, **__: attributes.pop(name, None)


def check_fit(model: Any, feed: InputFeed) -> None:
    """Raises ValueError if the last batch of an epoch cannot be divided among the devices: Keras would fail there.

    Also warns of keys of a LayoutMap that match nothing.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return
    last, here = feed.last_batch, rows_of(distribution).here
    if last and last % here:
        raise ValueError(
            f"Expected a last batch that {here} devices can divide. Received: one of {last}, at which fit fails. "
            f"Leave samples out, so that each batch is a multiple of {here}; of a tf.data.Dataset, batch(..., "
            "drop_remainder=True)."
        )
    for pattern in unmatched(model, distribution):
        cure = f" Keras compares it with whole paths: write '.*{pattern.removeprefix('.*')}'."
        logger.warning(
            "The key %r of the LayoutMap matches no variable of the model, whose weights it does not divide.%s",
            pattern,
            cure if _WHOLE_PATHS else "",
        )


def unmatched(model: Any, distribution: Any) -> list[str]:
    """Returns the keys of a layout that match no variable."""
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return []
    # Of a mesh with one device in that direction nothing is divided anyway.
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    paths = [variable.path for variable in (*model.variables, *optimizer)]
    matches = re.fullmatch if _WHOLE_PATHS else re.search
    return [
        str(pattern)
        for pattern in distribution._layout_map
        if not any(path == pattern or matches(pattern, path) for path in paths)
    ]
