"""The running `fit` of a model: what it holds, where it begins, and which errors leave it.

Keras gives a callback neither its epoch iterator nor its list of callbacks. `fit` holds both in local variables, which
are read from its frame.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

import keras

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.names import KerasInternalsError
from keras_preempt.backend.operations import RandomOperation
from keras_preempt.backend.user_code import enclosed

_FIT_LOCALS = (
    "callbacks",
    "epoch_iterator",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_data",
    "validation_steps",
)
_HOOKS = ("on_epoch_begin", "on_epoch_end", "on_train_end")
_OUTSIDE_STEPS = ("reset_metrics", "evaluate", "_get_metrics_result_or_logs")
"""Methods of the model that fit calls between the steps of an epoch and its last hook."""


class TracedStep:
    """The training step of a fit, traced before the fit runs its first one.

    Attributes:
        keeps_variables: Whether a variable outside of the model is a constant to it, with the value of its first run.
        condition: What its exactness depends on and cannot be seen, as the end of "exact if ..."; empty for nothing.
    """

    keeps_variables = False
    condition = ""

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that it uses and that are not known otherwise."""
        return ()

    @property
    def changed_variables(self) -> Sequence[Any]:
        """The variables that the step changes."""
        return ()

    def random_operations(self) -> list[RandomOperation]:
        """Returns the operations whose draws a restart may not repeat."""
        return []


class RunningFit:
    """What a running `fit` of a model holds, from its local variables; `feed` makes the feed of its epoch iterator.

    `epochs`, `initial_epoch` and `validation_data` are what was passed to fit.

    Attributes:
        feed: Its training input.
        before_evaluate: Called before each validation, before Keras makes an iterator for it.
        traced: The training step, once it is traced; None if it cannot be.
    """

    traced: TracedStep | None = None

    def __init__(self, model: Any, variables: Mapping[str, Any], feed: Callable[[Any], InputFeed]) -> None:
        self._model = model
        self.before_evaluate: Callable[[], Any] = lambda: None
        self._frame_callbacks = variables["callbacks"]
        self.feed = feed(variables["epoch_iterator"])
        self.epochs: int = variables["epochs"]
        self.initial_epoch: int = variables["initial_epoch"]
        self.validation_data = variables["validation_data"]
        self._validation_steps = variables["validation_steps"]
        self._earlier_start: list[int | None] = []

    @property
    def condition(self) -> str:
        """What the exactness of its steps depends on and cannot be seen, as the end of "exact if ..."; or empty."""
        return "" if self.traced is None else self.traced.condition

    def validate_without_drawing(self, iterators: int) -> Any:
        """Makes as many iterators as the validations of this fit have made, for a fit that validates no more.

        Each of them reshuffles the dataset, which another fit may use as well. Arrays are not shuffled. Returns the
        dataset; None if there is none, or if it was not used.
        """
        data, steps = self.validation_data, self._validation_steps
        feed = self.feed.of_validation(self._model, data, steps) if iterators else None
        if feed is None:
            return None
        # The next validation would have drawn a batch to build the model; only without steps with its own iterator.
        looked = builds_before_evaluating(self._model) and steps is not None
        for _ in range(iterators + int(looked)):
            feed.new()
        return data

    def finish_hooks(self) -> None:
        """Waits for hooks of steps that Keras runs in other threads on some backends."""

    def take_callbacks(self, first: Any, last: Any) -> list[Any]:
        """Makes `first` the first and `last` the last callback of this fit; returns the others.

        fit's container of callbacks gets a new list, since the old one is being iterated over. The container is not
        kept here: only the running fit may hold `last`.
        """
        container, self._frame_callbacks = self._frame_callbacks, None
        others = [callback for callback in container.callbacks if callback is not first]
        container.callbacks = [first, *others, last]
        return others

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        """Shows every error that is about to leave this fit to `settle`, which returns the one to raise.

        These are errors of steps and of batch hooks, of the hooks of epochs, of validation, of the metrics that are
        read after an epoch, and of the hooks at the end of training. Returns a function that ends the guard. Call it
        before `take_callbacks`: it needs the container.
        """
        source, container = self.feed.epoch_iterator, weakref.ref(self._frame_callbacks)
        catching, code = source.catch_stop_iteration, _code_in(keras.Model.fit)

        @contextlib.contextmanager
        def settled() -> Iterator[None]:
            try:
                yield
            except BaseException as error:
                if (raised := settle(error)) is error:
                    raise
                raise raised from error

        @contextlib.contextmanager
        def catch_stop_iteration() -> Iterator[None]:
            with settled(), catching():
                yield

        def hook(name: str) -> Callable[..., None]:
            # The container must not hold itself: what it holds must be freed with it.
            def called(*args: Any, **kwargs: Any) -> None:
                with settled():
                    getattr(type(callbacks := container()), name)(callbacks, *args, **kwargs)

            return called

        def method(name: str) -> Callable[..., Any]:
            original = getattr(self._model, name)

            @functools.wraps(original)
            def called(*args: Any, **kwargs: Any) -> Any:
                # Other code may call it too, and catch its errors.
                if not _is_called_by_fit(code):
                    return original(*args, **kwargs)
                with settled():
                    if name == "evaluate":
                        self.before_evaluate()
                    return original(*args, **kwargs)

            return called

        vars(source)["catch_stop_iteration"] = catch_stop_iteration
        for name in _HOOKS:
            vars(self._frame_callbacks)[name] = hook(name)
        for name in _OUTSIDE_STEPS:
            vars(self._model)[name] = method(name)

        def end() -> None:
            vars(source).pop("catch_stop_iteration", None)
            for name in _HOOKS:
                vars(container() or self).pop(name, None)
            for name in _OUTSIDE_STEPS:
                vars(self._model).pop(name, None)

        return end

    def start_at(self, epoch: int) -> None:
        """Makes fit begin at `epoch`; at or past `epochs`, it trains nothing."""
        if not self._earlier_start:
            self._earlier_start.append(self._model._initial_epoch)
        self._model._initial_epoch = epoch

    def forget_start(self) -> None:
        """Undoes `start_at`: Keras would begin every later fit of the model there too."""
        if self._earlier_start:
            self._model._initial_epoch = self._earlier_start.pop()

    def step_logs(self) -> Any:
        """Returns the logs of the last step as the step returned them; None if this fit has run none.

        Keras flattens them for callbacks, and finds by their keys whether an epoch's logs are those of its last step.
        """
        return self._local("logs")

    def epoch_logs(self) -> Any:
        """Returns the training logs of the epoch that is being validated; at other times, those of an earlier epoch."""
        return self._local("epoch_logs")

    def _local(self, name: str) -> Any:
        frame, code = inspect.currentframe(), _code_in(keras.Model.fit)
        while frame is not None:
            if frame.f_code is code and (held := _locals(frame)).get("self") is self._model:
                return held.get(name) or None
            frame = frame.f_back
        return None

    def logs_of_an_epoch_without_steps(self, logs: Any, *, of_step: bool) -> None:
        """Gives the resumed epoch its training logs if none of its steps is left to run: of its last step, or of all.

        Keras takes an epoch's logs from its last step. Without one, the epoch's training metrics would be missing from
        History and from every callback. Of a step's logs, Keras checks the metrics' names.
        """
        original = self._model._get_metrics_result_or_logs
        replaced = vars(self._model).get("_get_metrics_result_or_logs")
        code = _code_in(keras.Model.fit)

        def once(step_logs: Any) -> Any:
            if not _is_called_by_fit(code):  # A callback that evaluates calls it too.
                return original(step_logs)
            vars(self._model).pop("_get_metrics_result_or_logs", None)
            if replaced is not None:
                vars(self._model)["_get_metrics_result_or_logs"] = replaced
            if step_logs or of_step:
                return original(step_logs or logs)
            return logs

        _passed_through.add(once.__code__)
        vars(self._model)["_get_metrics_result_or_logs"] = once


def changed_variables() -> list[str]:
    """Returns, in words, the variables that are read of `fit` and that the installed Keras' lacks."""
    variables = _code_in(keras.Model.fit).co_varnames
    read = (*_FIT_LOCALS, "logs", "epoch_logs")
    return [f"the variable {name} of fit" for name in read if name not in variables]


@functools.lru_cache(maxsize=8)
def _code_in(fit: Any) -> CodeType:
    """Returns the code of Keras' own `fit`, even inside a decorator without `functools.wraps`."""
    waiting, seen = [fit], set[int]()
    while waiting:
        function = inspect.unwrap(waiting.pop(0))
        if id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(function, functools.partial):
            waiting.append(function.func)
        elif isinstance(function, FunctionType):
            if function.__module__.startswith("keras.") and function.__name__ == "fit":
                return function.__code__
            waiting += filter(callable, enclosed(function).values())
    raise RuntimeError(
        f"Expected keras.Model.fit to be the one of Keras, or a function around it. Received: {fit!r:.200}, in which "
        "Keras' own is not found. Write @functools.wraps(fit) above the function that replaces it."
    )


def _locals(frame: FrameType) -> dict[str, Any]:
    """Returns the local variables of a frame, and leaves no trace in it.

    Before Python 3.13 a frame keeps the dictionary that it returned last. So fit would hold the iterator of an earlier
    epoch until the next call of this drops it: in the middle of a save, where that may take a minute.
    """
    kept: Any = frame.f_locals
    held = dict(kept)
    if isinstance(kept, dict):
        kept.clear()
    return held


_passed_through: set[CodeType] = set()
"""The code of replacements of methods that fit calls: what these call counts as called by fit."""


def _is_called_by_fit(code: CodeType) -> bool:
    """Whether the calling function was called by fit, whose code this is, or through one of `_passed_through`."""
    # `frame` must not end as this function's own: a frame that holds itself would keep every caller's variables, such
    # as open files, until garbage is collected, which a preempted process does not do.
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    while frame is not None and frame.f_code in _passed_through:
        frame = frame.f_back
    return frame is not None and frame.f_code is code


def running_fit(
    model: Any, feed: Callable[[Any], InputFeed], kind: type[RunningFit] | None = None
) -> RunningFit:
    """Finds the `fit` of a model that is calling this callback hook; `feed` makes the feed of its epoch iterator.

    Raises RuntimeError if no fit of the model is running in this thread, and KerasInternalsError if `fit` does not hold
    what it is known to hold.
    """
    code = _code_in(keras.Model.fit)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and (held := _locals(frame)).get("self") is model:
            missing = [name for name in _FIT_LOCALS if name not in held]
            if missing:
                raise KerasInternalsError(
                    f"fit to hold {', '.join(_FIT_LOCALS)} while it runs", f"none called {', '.join(missing)}"
                )
            return (kind or RunningFit)(model, {name: held[name] for name in _FIT_LOCALS}, feed)
        frame = frame.f_back
    raise RuntimeError(
        "Expected PreemptionCallback to be called by model.fit. Received: a call from elsewhere. "
        "Pass it in model.fit(callbacks=[...]). For a loop of your own, as around train_on_batch, there is "
        "PreemptionCheckpointHandler: see docs/custom-loops.md."
    )


def evaluation_iterator(model: Any) -> Any:
    """Returns the epoch iterator of the validation that runs inside fit; None if there is none."""
    return getattr(model, "_eval_epoch_iterator", None)


def builds_before_evaluating(model: Any) -> bool:
    """Whether Keras draws a batch to build the model before every fit and evaluation, as it does under a strategy."""
    return getattr(model, "_distribute_strategy", None) is not None
