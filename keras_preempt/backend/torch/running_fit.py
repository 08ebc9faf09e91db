"""The running `fit` of a model on torch, and its step; see `keras_preempt.backend.keras.running_fit`.

Verified with Keras 3.15.1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.running_fit import RunningFit, TracedStep
from keras_preempt.backend.torch.feed import TorchFeed

_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class TorchStep(TracedStep):
    """The step of a fit, which runs as Python code: what it draws comes from generators whose states are saved."""


class TorchFit(RunningFit):
    """See `RunningFit`. Keras' loop over the batches runs the steps and their hooks itself, outside of its iterator."""

    def __init__(self, model: Any, variables: Mapping[str, Any], feed: Callable[[Any], InputFeed]) -> None:
        super().__init__(model, variables, feed)
        self._container = weakref.ref(variables["callbacks"])
        if isinstance(self.feed, TorchFeed):
            self.feed.records = True

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        unguarded = super().guard(settle)
        model, container = self._model, self._container
        train_function = model.train_function

        def shown(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                try:
                    return call(*args, **kwargs)
                except BaseException as error:
                    if (raised := settle(error)) is error:
                        raise
                    raise raised from error

            return called

        def hook(name: str) -> Callable[..., Any]:
            # The container must not hold itself.
            return shown(lambda *args, **kwargs: getattr(type(held := container()), name)(held, *args, **kwargs))

        guarded = shown(train_function)
        model.train_function = guarded
        for name in _HOOKS:
            vars(container())[name] = hook(name)

        def end() -> None:
            unguarded()
            if model.train_function is guarded:
                model.train_function = train_function
            for name in _HOOKS:
                vars(container() or self).pop(name, None)

        return end
