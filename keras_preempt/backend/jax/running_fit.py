"""The running `fit` of a model on JAX; see `keras_preempt.backend.keras.running_fit`.

Verified with Keras 3.15.1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from keras_preempt.backend.jax import backlog, checks
from keras_preempt.backend.jax.feed import JaxFeed
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.running_fit import RunningFit

_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class JaxFit(RunningFit):
    """What a running `fit` holds; see `RunningFit`."""

    def __init__(self, model: Any, variables: Mapping[str, Any], feed: Callable[[Any], InputFeed]) -> None:
        super().__init__(model, variables, feed)
        self._container = weakref.ref(variables["callbacks"])
        if isinstance(self.feed, JaxFeed):
            self.feed.stub = self.stub
        checks.check(model, self.feed)

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        """See `RunningFit.guard`; also bounds the steps that are queued, while the guard stands."""
        unbound, unguarded = backlog.bound(self._model), super().guard(settle)

        def end() -> None:
            unguarded()
            unbound()

        return end

    def finish_hooks(self) -> None:
        """See `RunningFit.finish_hooks`; also raises what they have raised, as Keras does at its next step."""
        if (container := self._container()) is not None:
            container._flush_futures()

    def stub(self) -> None:
        """Has the next step of this fit compute nothing, and no callback told of it."""
        model, container = self._model, self._container()
        train_function = model.train_function

        def nothing(state: Any, iterator: Any) -> Any:
            model.train_function = train_function
            return {}, state

        model.train_function = nothing
        for name in _HOOKS:
            vars(container)[name] = _muted(vars(container), name)


def _muted(attributes: dict[str, Any], name: str) -> Callable[..., None]:
    def once(*args: Any, **kwargs: Any) -> None:
        attributes.pop(name, None)

    return once
