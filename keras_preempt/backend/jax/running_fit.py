"""The running `fit` of a model on JAX; see `keras_preempt.backend.keras.running_fit`.

Verified with Keras 3.15.1.
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
from keras_preempt.backend.keras.running_fit import RunningFit

logger = logging.getLogger("keras_preempt")

_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


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
            container._flush_futures()

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
        logger.warning(
            "The key %r of the LayoutMap matches no variable of the model, whose weights it does not divide. Keras "
            "compares it with whole paths: write '.*%s'.",
            pattern,
            pattern.removeprefix(".*"),
        )


def unmatched(model: Any, distribution: Any) -> list[str]:
    """Returns the keys of a layout that match no variable."""
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return []
    # Of a mesh with one device in that direction nothing is divided anyway.
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    paths = [variable.path for variable in (*model.variables, *optimizer)]
    return [
        str(pattern)
        for pattern in distribution._layout_map
        if not any(path == pattern or re.fullmatch(pattern, path) for path in paths)
    ]
