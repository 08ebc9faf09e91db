"""The private names of Keras that this package uses, all in one place.

Verified with Keras 3.8.0 to 3.15.1 on the TensorFlow of ``backend.tensorflow.internals``; what older ones of them do
differently says so where it is used. Every name is looked up when it is needed and checked for the shape
relied upon; ``tests/backend/keras/test_canaries.py`` has one test for each, which says what changed when a new Keras
moves one. Importing this module starts nothing in TensorFlow: ``MultiWorkerMirroredStrategy`` can only
be created before the first operation has run, and this module is imported earlier than that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from packaging.version import Version

from keras_preempt.backend.keras import names
from keras_preempt.backend.keras.code_reading import code_of, reads
from keras_preempt.backend.keras.traced_step import TracedStep
from keras_preempt.backend.requirements import NEWEST_KERAS, OLDEST_KERAS
from keras_preempt.backend.tensorflow import replica_branches
from keras_preempt.backend.tensorflow.execution_loop import execution_loop
from keras_preempt.backend.tensorflow.strategies import has_several_mirrored_replicas

VERIFIED_KERAS = NEWEST_KERAS


class KerasInternalsError(RuntimeError):
    """The installed Keras lacks a private name relied upon, or the name now means something else."""

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(
            f"Expected {expected}, as in Keras {VERIFIED_KERAS}. "
            f"Received: {received} in Keras {keras.__version__}. "
            f"Install keras=={VERIFIED_KERAS}, or a keras-preempt that knows Keras {keras.__version__}."
        )


def _keras_is_from(version: str) -> bool:
    return Version(keras.__version__) >= Version(version)


@dataclass(frozen=True)
class PrivateName:
    """A private function of Keras: where it stands, the parameters it is called with, the Keras that brought it."""

    module: str
    path: str
    parameters: tuple[str, ...]
    since: str = OLDEST_KERAS

    def __str__(self) -> str:
        return f"{self.module}.{self.path}({', '.join(self.parameters)})"

    def owner(self) -> Any:
        """Returns the module or class whose own attribute the function is.

        Raises:
            KerasInternalsError: The module or the class is gone.
        """
        *parents, _ = self.path.split(".")
        try:
            return functools.reduce(getattr, parents, importlib.import_module(self.module))
        except (ImportError, AttributeError) as error:
            raise KerasInternalsError(str(self), str(error)) from error

    @property
    def expected(self) -> bool:
        """Whether the installed Keras is new enough to have it."""
        return _keras_is_from(self.since)

    @property
    def attribute(self) -> str:
        """The function's name in its owner."""
        return self.path.rpartition(".")[2]

    def find(self) -> Callable[..., Any]:
        """Returns the function itself.

        Raises:
            KerasInternalsError: It is gone, or takes other parameters.
        """
        function = vars(self.owner()).get(self.attribute)
        if not inspect.isfunction(function):
            raise KerasInternalsError(str(self), "no such function")
        if (parameters := tuple(inspect.signature(function).parameters)) != self.parameters:
            raise KerasInternalsError(str(self), f"parameters ({', '.join(parameters)})")
        return function


# --- Repairs of fit under several workers -------------------------------------------------------------------
#
# Keras 3's TensorFlow trainer is tested on one worker only. Five defects stop it on more: the first two with
# several workers, the third with mirrored replicas, also a single one, the others with several of them. Each
# `Repair` below knows how to tell the defect without running an operation, and how to wrap the function that has
# it so that everybody else gets Keras' own behaviour.

_TRAINER = "keras.src.backend.tensorflow.trainer"

SYMBOLIC_BUILD = PrivateName(
    _TRAINER, "TensorFlowTrainer._maybe_symbolic_build", ("self", "iterator", "data_batch")
)
REDUCE_PER_REPLICA = PrivateName(_TRAINER, "reduce_per_replica", ("values", "strategy", "reduction"))
MAKE_FUNCTION = PrivateName(_TRAINER, "TensorFlowTrainer._make_function", ("self", "step_function"))
WITHOUT_OPTIONALS = PrivateName(
    _TRAINER, "TensorFlowTrainer._autoconvert_optionals", ("self", "step_func"), since="3.12.0"
)
CHECK_FINITE = PrivateName(
    "keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.check_finite", ("self", "grads")
)
APPLY_GRADIENTS = PrivateName(
    "keras.src.optimizers.base_optimizer",
    "BaseOptimizer._backend_apply_gradients",
    ("self", "grads", "trainable_variables"),
)

FUNCTIONS = (
    SYMBOLIC_BUILD,
    REDUCE_PER_REPLICA,
    MAKE_FUNCTION,
    WITHOUT_OPTIONALS,
    CHECK_FINITE,
    APPLY_GRADIENTS,
)
"""All of them."""

#: What `MAKE_FUNCTION` calls the function that runs one step.
ONE_STEP = "one_step_on_data"


@dataclass(frozen=True)
class Repair:
    """A defect of Keras, how to detect it and how to wrap the function that has it.

    Attributes:
        defect: What does not work, in a few words.
        target: The function to be replaced.
        uses: The other private names that probe and replacement rely on.
        is_broken: Tells from the function as installed whether it has the defect; runs no operation.
        repaired: Makes the replacement from the function as installed.
        concerns: Whether a compiled model meets the defect.
    """

    defect: str
    target: PrivateName
    uses: tuple[PrivateName, ...]
    is_broken: Callable[[Callable[..., Any]], bool]
    repaired: Callable[[Callable[..., Any]], Callable[..., Any]]
    concerns: Callable[[Any], bool]

    def needed(self) -> bool:
        """Whether the installed Keras has the defect.

        Raises:
            KerasInternalsError: A name relied upon is gone or has changed, so that this cannot be told.
        """
        for name in self.uses:
            if name.expected:
                name.find()
        function = self.target.find()
        try:
            return self.is_broken(function)
        except (AttributeError, TypeError) as error:
            raise KerasInternalsError(str(self.target), f"one that works differently ({error})") from error


def _is_clustered(strategy: Any) -> bool:
    """Whether the strategy has replicas in other processes than this one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.num_replicas_in_sync > len(strategy.extended.worker_devices))


class _StandInStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Passes for a strategy over several workers and notes what it is asked to reduce; has no cluster."""

    worker_devices = ("/device:CPU:0",)
    num_replicas_in_sync = 2

    def __init__(self) -> None:
        self.reduced: list[tuple[Any, Any]] = []

    @property
    def extended(self) -> Any:
        return self

    def _in_multi_worker_mode(self) -> bool:
        return True

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        self.reduced.append((value, axis))
        return value


class _StandInValue(tf.distribute.DistributedValues):
    """Passes for a scalar that every replica has its own of."""

    def __init__(self) -> None:
        self.shape = tf.TensorShape([])


def _reduces_nested_values(maybe_symbolic_build: Callable[..., Any]) -> bool:
    trainer = SYMBOLIC_BUILD.owner()()
    trainer._distribute_strategy = strategy = _StandInStrategy()
    trainer._symbolic_build = lambda iterator=None, data_batch=None: None
    batch = (_StandInValue(), _StandInValue())
    # Keras before 3.11 hands out one step with each iterator, later ones the first and the last.
    steps = (0, 0) if _keras_is_from("3.11.0") else (0,)
    maybe_symbolic_build(trainer, iterator=[(*steps, iter([batch]))])
    return any(isinstance(value, tuple) for value, _ in strategy.reduced)


def _build_from_local_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Builds from the first local replica's part of the batch, which has the same structure and types.

    Takes as many batches from as many iterators as Keras does, so that the order of the data stays the same.
    """

    @functools.wraps(original)
    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = self._distribute_strategy
        if iterator is None or not _is_clustered(strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        for *_, batches in iterator:
            data_batch = keras.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            break
        return original(self, data_batch=data_batch)

    return maybe_symbolic_build


def _averages_along_an_axis(reduce_per_replica: Callable[..., Any]) -> bool:
    strategy = _StandInStrategy()
    reduce_per_replica(_StandInValue(), strategy, "auto")
    return any(axis is not None for _, axis in strategy.reduced)


def _average_across_replicas_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """Averages each log across replicas, element by element, as Keras does when they are in one process.

    Along an axis as well, as Keras does across workers, is an error for scalars and wrong for the rest.
    """

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in ("auto", "mean") or not _is_clustered(strategy):
            return original(values, strategy, reduction)
        return keras.tree.map_structure(lambda value: mean(value, strategy), values)

    def mean(value: Any, strategy: Any) -> Any:
        # A metric's result may be its variable, and variables are on no device that reduce could tell.
        variables = (tf.Variable, keras.Variable)
        if any(isinstance(each, variables) for each in strategy.experimental_local_results(value)):
            value = strategy.run(lambda each: tf.identity(keras.ops.convert_to_tensor(each)), args=(value,))
        return strategy.reduce("MEAN", value, axis=None)

    return reduce_per_replica


def _runs_steps_in_branches(make_function: Callable[..., Any]) -> bool:
    # Tracing it would tell for certain, but would also start TensorFlow: read the code instead.
    codes = code_of(make_function)
    if not any(reads(code, ONE_STEP) for code in codes):
        raise AttributeError(f"it has no local function {ONE_STEP!r}")
    return any(
        reads(branch, ONE_STEP)
        for code in codes
        if "cond" in code.co_names
        for branch in code.co_consts
        if isinstance(branch, CodeType)
    )


def _loops_over_several_replicas(model: Any) -> bool:
    return bool(model.steps_per_execution > 1) and has_several_mirrored_replicas(model.distribute_strategy)


def _as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    """Keras before 3.12 leaves empty optionals in the data alone."""
    return step


def _loop_without_branches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Runs an execution's steps in `execution_loop` instead of in branches of `tf.cond`."""

    @functools.wraps(original)
    def make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        upstream = original(self, step_function)
        strategy = self.distribute_strategy
        if not _loops_over_several_replicas(self):
            return upstream

        def one_step(data: Any) -> Any:
            # The reduction is looked up when traced, so that its own repair is used.
            return REDUCE_PER_REPLICA.find()(strategy.run(step_function, args=(data,)), strategy, "auto")

        convert = self._autoconvert_optionals if WITHOUT_OPTIONALS.expected else _as_it_is
        compiled = functools.partial(tf.function, reduce_retracing=True, autograph=False)
        if self.run_eagerly:
            execution = execution_loop(convert(one_step), self.steps_per_execution)
        else:
            one_step = convert(compiled(one_step, jit_compile=self.jit_compile))
            execution = compiled(execution_loop(one_step, self.steps_per_execution))

        def function(iterator: Any) -> Any:
            if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
                return upstream(iterator)  # `train_on_batch`: plain batches, nothing to loop over in a graph
            outputs = execution(iterator)
            if not outputs.has_value():
                raise StopIteration
            return outputs.get_value()

        return function

    return make_function


def _agree_on_finite_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes a step only if the gradients are finite on every replica.

    Keras asks the first replica of each process, before the gradients are summed up. In one process an overflow of
    another replica then reaches the weights; of several workers, those whose own gradients are finite wait for ever
    for the sum with those who skip the step.
    """

    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or not has_several_mirrored_replicas(replica.strategy):
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0.0)

    return check_finite


def _scales_the_loss_on_several_replicas(model: Any) -> bool:
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return scales and has_several_mirrored_replicas(model.distribute_strategy)


REPAIRS = (
    Repair(
        defect="building a model from a batch of several workers",
        target=SYMBOLIC_BUILD,
        uses=(),
        is_broken=_reduces_nested_values,
        repaired=_build_from_local_batch,
        concerns=lambda model: _is_clustered(model.distribute_strategy),
    ),
    Repair(
        defect="averaging logs across workers",
        target=REDUCE_PER_REPLICA,
        uses=(),
        is_broken=_averages_along_an_axis,
        repaired=_average_across_replicas_only,
        concerns=lambda model: _is_clustered(model.distribute_strategy),
    ),
    Repair(
        defect="gradient accumulation and overwriting weights by their averages under a strategy",
        target=APPLY_GRADIENTS,
        uses=(),
        is_broken=replica_branches.branches_in_replicas,
        repaired=replica_branches.branch_together,
        concerns=replica_branches.branches_in_optimizer,
    ),
    Repair(
        defect="several steps per execution on several replicas",
        target=MAKE_FUNCTION,
        uses=(REDUCE_PER_REPLICA, WITHOUT_OPTIONALS),
        is_broken=_runs_steps_in_branches,
        repaired=_loop_without_branches,
        concerns=_loops_over_several_replicas,
    ),
    Repair(
        defect="loss scaling on several replicas, of which only some overflow",
        target=CHECK_FINITE,
        uses=(),
        is_broken=lambda check_finite: "all_reduce" not in check_finite.__code__.co_names,
        repaired=_agree_on_finite_gradients,
        concerns=_scales_the_loss_on_several_replicas,
    ),
)


# ------------------------------------------------------------------------------------------------
# The running fit
#
# Keras hands a callback neither its epoch iterator nor its list of callbacks, and has no way to begin an
# epoch at a later step. `fit` holds both in local variables, which are read from its frame; the epoch
# iterator looks its own methods up on the instance, so that one of them can be replaced on that instance.
# ------------------------------------------------------------------------------------------------

_FIT_LOCALS = (
    "callbacks",
    "epoch_iterator",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_data",
    "validation_steps",
)
_EPOCH_ITERATOR_NAMES = (
    "_enumerate_iterator",
    "_get_iterator",
    "_current_iterator",
    "_steps_seen",
    "_num_batches",
    "_distributed_dataset",
    "steps_per_epoch",
    "steps_per_execution",
    "catch_stop_iteration",
    "reset",
)
_EPOCH_HOOKS = ("on_epoch_begin", "on_epoch_end")
_OUTSIDE_STEPS = ("reset_metrics", "evaluate", "_get_metrics_result_or_logs")
"""Methods of the model that fit itself calls between the steps of an epoch and its last hook."""


class RunningFit:
    """What a running `fit` of `model` holds.

    Attributes:
        feed: Its training input.
        epochs: The number of epochs that it was asked for.
        initial_epoch: The first epoch that it was asked for, from 0.
        validation_data: What was passed as that.
        before_evaluate: Called before each validation, before Keras makes an iterator for it.
        traced: The training step, once it is traced and if it can be (`backend.keras.traced_step`).
    """

    traced: TracedStep | None = None

    def __init__(self, model: Any, variables: Mapping[str, Any]) -> None:
        self._model = model
        self.before_evaluate: Callable[[], Any] = _nothing_to_note
        self._frame_callbacks = variables["callbacks"]
        self.feed = InputFeed(variables["epoch_iterator"])
        self.epochs: int = variables["epochs"]
        self.initial_epoch: int = variables["initial_epoch"]
        self.validation_data = variables["validation_data"]
        self._validation_steps = variables["validation_steps"]
        self._earlier_start: list[int | None] = []

    def validate_without_drawing(self, iterators: int) -> tf.data.Dataset | None:
        """Makes the iterators that the validations of this fit have made, for a fit that does not validate any more.

        Each of them reshuffles the dataset, which another fit may use as well. Arrays are not shuffled.

        Args:
            iterators: How many were made, as a save counts them.

        Returns:
            The dataset; None if there is none, or if it was not used.
        """
        data, steps = self.validation_data, self._validation_steps
        if not isinstance(data, tf.data.Dataset) or not iterators:
            return None
        source = type(self.feed.epoch_iterator)(
            x=data,
            distribute_strategy=self._model.distribute_strategy,
            steps_per_execution=self._model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
        )
        # The next validation would have looked at a batch first, with an iterator of its own only if it has no steps.
        looked = builds_before_evaluating(self._model) and steps is not None
        feed = InputFeed(source)
        for _ in range(iterators + int(looked)):
            feed.new()
        return data

    def take_callbacks(self, first: Any, last: Any) -> list[Any]:
        """Makes `first` the first and `last` the last callback of this fit; returns the others.

        fit's list of callbacks gets a new list rather than a changed one, since it is being walked through.
        It is not kept: nothing but the running fit may hold `last`.
        """
        container, self._frame_callbacks = self._frame_callbacks, None
        others = [callback for callback in container.callbacks if callback is not first]
        container.callbacks = [first, *others, last]
        return others

    def guard(self, settle: Callable[[BaseException], BaseException]) -> Callable[[], None]:
        """Shows every error that is about to leave this fit to `settle`, which returns the one to raise.

        Seen are errors of steps and of batch hooks, of the hooks of epochs, of validation and of the metrics that
        are read after an epoch. To be called before `take_callbacks`, whose container it needs.

        Returns:
            A function that ends it.
        """
        source, container = self.feed.epoch_iterator, weakref.ref(self._frame_callbacks)
        catching, code = source.catch_stop_iteration, _code_of_fit()

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
            # The container must not hold itself: what else it holds is to go with it.
            def called(*args: Any, **kwargs: Any) -> None:
                with settled():
                    getattr(type(callbacks := container()), name)(callbacks, *args, **kwargs)

            return called

        def method(name: str) -> Callable[..., Any]:
            original = getattr(self._model, name)

            @functools.wraps(original)
            def called(*args: Any, **kwargs: Any) -> Any:
                # Others may call it too, and take its errors for something else than the end of fit.
                if not _is_called_by_fit(code):
                    return original(*args, **kwargs)
                with settled():
                    if name == "evaluate":
                        self.before_evaluate()
                    return original(*args, **kwargs)

            return called

        vars(source)["catch_stop_iteration"] = catch_stop_iteration
        for name in _EPOCH_HOOKS:
            vars(self._frame_callbacks)[name] = hook(name)
        for name in _OUTSIDE_STEPS:
            vars(self._model)[name] = method(name)

        def end() -> None:
            vars(source).pop("catch_stop_iteration", None)
            for name in _EPOCH_HOOKS:
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
        """The logs of the last step as it returned them; None if this fit has run none.

        Keras flattens them for callbacks, and tells by their keys whether an epoch's logs are those of its last step.
        """
        return self._local("logs")

    def epoch_logs(self) -> Any:
        """The training logs of the epoch whose validation is running; those of an earlier one outside of it."""
        return self._local("epoch_logs")

    def _local(self, name: str) -> Any:
        frame, code = inspect.currentframe(), _code_of_fit()
        while frame is not None:
            if frame.f_code is code and frame.f_locals.get("self") is self._model:
                return frame.f_locals.get(name) or None
            frame = frame.f_back
        return None

    def logs_of_an_epoch_without_steps(self, logs: Any, *, of_step: bool) -> None:
        """Gives the resumed epoch its training logs if not one of its steps is left to run.

        Without this, Keras takes the epoch's logs from its last step, of which there is none, and the
        epoch's training metrics are missing from History and from every callback.

        Args:
            logs: What the last step returned, or the logs of the epoch.
            of_step: Which of both: with those of a step, Keras looks whether the metrics have the same names.
        """
        original = self._model._get_metrics_result_or_logs
        replaced = vars(self._model).get("_get_metrics_result_or_logs")

        code = _code_of_fit()

        @_between_fit_and_guard
        def once(step_logs: Any) -> Any:
            if not _is_called_by_fit(code):  # A callback that evaluates calls it too.
                return original(step_logs)
            vars(self._model).pop("_get_metrics_result_or_logs", None)
            if replaced is not None:
                vars(self._model)["_get_metrics_result_or_logs"] = replaced
            if step_logs or of_step:
                return original(step_logs or logs)
            return logs

        vars(self._model)["_get_metrics_result_or_logs"] = once


def changed_names() -> list[str]:
    """Returns what the installed Keras lacks of the above, as far as that can be told before a fit."""
    changed = []
    for function in FUNCTIONS:
        try:
            if function.expected:
                function.find()
        except KerasInternalsError:
            changed.append(function.path)
    changed += names.missing()
    variables = _code_of_fit().co_varnames
    read = (*_FIT_LOCALS, "logs", "epoch_logs")
    return changed + [f"the variable {name} of fit" for name in read if name not in variables]


def _code_of_fit() -> CodeType:
    function: Any = inspect.unwrap(keras.Model.fit)
    code: CodeType = function.__code__
    return code


_passed_through: set[CodeType] = set()


def _between_fit_and_guard(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a replacement of a method that fit calls, and that calls what it has replaced: fit is still the caller."""
    _passed_through.add(function.__code__)
    return function


def _is_called_by_fit(code: CodeType) -> bool:
    """Whether the function that asks was called by fit, whose code that is, not counting what stands between."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    while caller is not None and caller.f_code in _passed_through:
        caller = caller.f_back
    return caller is not None and caller.f_code is code


def running_fit(model: Any) -> RunningFit:
    """Finds the `fit` of `model` that is calling this callback hook.

    Raises:
        RuntimeError: No fit of the model is running in this thread.
        KerasInternalsError: `fit` does not hold what it is known to hold.
    """
    code = _code_of_fit()
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is model:
            missing = [name for name in _FIT_LOCALS if name not in frame.f_locals]
            if missing:
                raise KerasInternalsError(
                    f"fit to hold {', '.join(_FIT_LOCALS)} while it runs", f"none called {', '.join(missing)}"
                )
            return RunningFit(model, {name: frame.f_locals[name] for name in _FIT_LOCALS})
        frame = frame.f_back
    raise RuntimeError(
        "Expected PreemptionCallback to be called by model.fit. Received: a call from elsewhere. "
        "Pass it in model.fit(callbacks=[...]). For a loop of your own, as around train_on_batch, there is "
        "PreemptionCheckpointHandler: see docs/custom-loops.md."
    )


_iterators_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""By dataset, how many iterators the fits of this process have made; several fits may share one."""


class InputFeed:
    """The iterators that one epoch iterator makes, counted, so that their sequence can be made again.

    Each iterator that Keras makes advances the reshuffling of the dataset, also the ones that it throws
    away. A position is therefore the number of iterators made and the number of batches drawn from the
    last of them.

    Args:
        epoch_iterator: The `TFEpochIterator` of a fit or of an evaluation inside it.

    Attributes:
        live: The iterator made last; None if none was made.
        iterators: How many were made.
        look: Called with each new iterator before anything is drawn from it; what it returns is `untouched`.
        untouched: What `look` returned for `live`.
        note: Called before each iterator is made; what it returns is added to `noted`.
        noted: What `note` returned.
        making: Whether it is making one now.
        at_epoch: What `keras_preempt.state.py_dataset` keeps of the beginning of the epoch.
        made_before: How many iterators earlier fits of this process had made of the dataset.

    Raises:
        KerasInternalsError: The epoch iterator lacks something that is relied upon.
    """

    def __init__(self, epoch_iterator: Any) -> None:
        missing = [name for name in _EPOCH_ITERATOR_NAMES if not hasattr(epoch_iterator, name)]
        if missing:
            raise KerasInternalsError(
                f"epoch iterators with {', '.join(_EPOCH_ITERATOR_NAMES)}",
                f"none called {', '.join(missing)}",
            )
        self._source = epoch_iterator
        self._dataset_of = epoch_iterator._get_iterator
        self._prepared: Any = None
        self.live: Any = None
        self.iterators = 0
        self.look: Callable[[Any], Any] = _look_away
        self.untouched: Any = None
        self.note: Callable[[], Any] = _nothing_to_note
        self.noted: list[Any] = []
        self.making = False
        self.at_epoch: Any = None
        self._drawn: list[int] = []
        self._forgotten = 0
        dataset = self.undistributed
        self.made_before = 0 if dataset is None else _iterators_made.get(dataset, 0)
        epoch_iterator._get_iterator = lambda: self
        reset = epoch_iterator.reset

        def note_and_reset() -> None:
            self._forgotten = max(self._forgotten, int(epoch_iterator._steps_seen))
            reset()

        epoch_iterator.reset = note_and_reset

    def __iter__(self) -> Any:
        """What Keras calls for a new iterator."""
        if self._prepared is not None:
            prepared, self._prepared = self._prepared, None
            return prepared
        return self.new()

    def new(self) -> Any:
        """Makes the next iterator of the sequence."""
        self._drawn = self.draws
        self._forgotten = 0
        self.noted.append(self.note())
        self.making = True
        self.live = iter(self._dataset_of())
        self.making = False
        self.iterators += 1
        self._count()
        self.untouched = self.look(self.live)
        return self.live

    def _count(self) -> None:
        dataset = self.undistributed
        if dataset is not None:
            _iterators_made[dataset] = self.made_before + self.iterators

    @property
    def epoch_iterator(self) -> Any:
        """The epoch iterator itself."""
        return self._source

    def belongs_to(self, epoch_iterator: Any) -> bool:
        """Whether this is the feed of that epoch iterator."""
        return self._source is epoch_iterator

    @property
    def dataset(self) -> Any:
        """The dataset, as the strategy distributes it."""
        return self._source._distributed_dataset

    @property
    def undistributed(self) -> tf.data.Dataset | None:
        """The dataset that was passed to fit, if one was, before the strategy distributed it."""
        dataset = self._dataset_passed
        return dataset if isinstance(dataset, tf.data.Dataset) else None

    @property
    def _dataset_passed(self) -> Any:
        return getattr(self._source.data_adapter, "_dataset", None)

    @property
    def _is_distributed_by_user(self) -> bool:
        return isinstance(self._dataset_passed, tf.distribute.DistributedDataset)

    @property
    def is_generator(self) -> bool:
        """Whether a Python generator was passed to fit."""
        return type(self._source.data_adapter).__name__ == "GeneratorDataAdapter"

    @property
    def py_dataset(self) -> Any:
        """The `keras.utils.PyDataset` that was passed to fit, if one was and each epoch goes through all of it."""
        dataset = getattr(self._source.data_adapter, "py_dataset", None)
        whole = self._source.steps_per_epoch is None and self._source.data_adapter.num_batches is not None
        return dataset if whole else None

    @property
    def changes_itself(self) -> str:
        """The class of a `keras.utils.PyDataset` that has its own hooks for the ends of an epoch; else empty."""
        kind = type(getattr(self._source.data_adapter, "py_dataset", None))
        own = any(
            getattr(kind, name, None) not in (None, getattr(keras.utils.PyDataset, name, None))
            for name in ("on_epoch_begin", "on_epoch_end")
        )
        return kind.__name__ if own else ""

    def begin_epoch_once(self) -> None:
        """Begins an epoch of the input now, and not again when Keras begins it."""
        adapter = self._source.data_adapter
        adapter.on_epoch_begin()
        vars(adapter)["on_epoch_begin"] = lambda: vars(adapter).pop("on_epoch_begin", None)

    @property
    def element_spec(self) -> Any:
        """What one batch looks like."""
        return self._source._distributed_dataset.element_spec

    @property
    def batch_size(self) -> int | None:
        """Samples in one batch of all replicas, where Keras was told; a dataset tells by itself."""
        if self._is_distributed_by_user:
            return None  # Keras looks for it where there is a share for each replica.
        size = self._source.data_adapter.batch_size
        return None if size is None else int(size)

    @property
    def steps_per_execution(self) -> int:
        """Steps in one call of the train function."""
        return int(self._source.steps_per_execution)

    @property
    def batches(self) -> int | None:
        """Batches in one epoch, where Keras knows."""
        steps = self._source.steps_per_epoch
        if steps is None and not self._is_distributed_by_user:
            steps = self._source._num_batches  # Of a distributed dataset, these can be one replica's.
        return None if steps is None else int(steps)

    def position(self, *, pending: bool) -> dict[str, Any]:
        """Where the input stands.

        Args:
            pending: Whether Keras has already counted an execution that has not begun.
        """
        return {
            "iterators": self.iterators,
            "drawn_before": list(self._drawn),
            "batches": self._source._steps_seen - (self._source.steps_per_execution if pending else 0),
            "current": self._source._current_iterator is not None,
            "num_batches": self._source._num_batches,
            "made_before": self.made_before,
        }

    @property
    def draws(self) -> list[int]:
        """How many batches were drawn of each iterator that was made."""
        if not self.iterators:
            return []
        return [*self._drawn, max(self._forgotten, int(self._source._steps_seen))]

    def looked_at(self) -> None:
        """To be called when Keras has looked at one batch to build the model, and counted a whole execution."""
        self._forgotten -= self.steps_per_execution - 1

    def draws_after_next_look(self) -> list[int]:
        """What `draws` will be when Keras has looked at a batch before it evaluates again."""
        source, draws = self._source, self.draws
        if source._current_iterator is None or source.steps_per_epoch is None:
            return [*draws, 1]
        return [*draws[:-1], draws[-1] + 1]

    def begin_with(self, draws: Sequence[int]) -> None:
        """Takes the iterators made until now for those, at least one, of which so many batches were drawn."""
        self.iterators = len(draws)
        *self._drawn, self._forgotten = draws

    @property
    def goes_on(self) -> bool:
        """Whether Keras would draw its next batch from `live`, and not from a new iterator."""
        return self._source._current_iterator is not None and self._source.steps_per_epoch is not None

    def resume(self, position: Mapping[str, Any], live: Any, *, batch: int | None) -> None:
        """Makes the next epoch go on from a position.

        Args:
            position: From `position`.
            live: The last iterator of the sequence, advanced to the position; None if none is needed.
            batch: The step of the epoch to go on with; None if the epoch's training is over or not begun.
        """
        source = self._source
        self.iterators = int(position["iterators"])
        self._count()
        self._drawn = [int(batches) for batches in position["drawn_before"]]
        self._forgotten = 0
        self.live = live
        source._num_batches = position["num_batches"]
        source._current_iterator = live if position["current"] else None
        source._steps_seen = int(position["batches"])
        if batch is None:
            return
        if source.steps_per_epoch is not None:
            source._steps_seen -= batch  # Counted again while the steps that were run are skipped.
        else:
            self._prepared = live
        self._replace_next_epoch(batch // self.steps_per_execution)

    def skip_next_epoch(self) -> None:
        """Makes the next epoch yield no step."""
        self._replace_next_epoch(None)

    def _replace_next_epoch(self, skip: int | None) -> None:
        source = self._source
        original = source._enumerate_iterator

        def once() -> Iterator[Any]:
            vars(source).pop("_enumerate_iterator", None)
            if skip is None:
                return
            steps = original()
            for _ in range(skip):
                next(steps)  # Hands out the iterator; draws nothing from it.
            yield from steps

        source._enumerate_iterator = once


def _look_away(iterator: Any) -> None:
    """Nobody is interested in new iterators."""


def _nothing_to_note() -> None:
    """Nobody is interested in when iterators are made."""


def evaluation_iterator(model: Any) -> Any:
    """The epoch iterator of the validation that runs inside fit, or None."""
    return getattr(model, "_eval_epoch_iterator", None)


def builds_before_evaluating(model: Any) -> bool:
    """Whether Keras draws a batch to build the model before every fit and evaluation."""
    return model._distribute_strategy is not None


def layers_of(model: Any) -> list[Any]:
    """Returns the model and all layers in it, also those that nothing but an attribute names."""
    return list(model._flatten_layers())


def global_seed_state(*, create: bool = False) -> Any:
    """The variable behind Keras' random numbers without a seed, or None if there is none yet."""
    generator = global_state.get_global_attribute("global_seed_generator")
    if generator is None and create:
        generator = seed_generator.global_seed_generator()
    return None if generator is None else generator.state


def is_seed_state(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return str(variable.name) == "seed_generator_state"


def flush_summaries(callback: keras.callbacks.TensorBoard) -> None:
    """Writes out the points that TensorBoard holds back; Keras does so only when training ends."""
    for writer in callback._writers.values():
        writer.flush()


def train_summaries(callback: keras.callbacks.TensorBoard) -> Any:
    """The `tf.summary.SummaryWriter` of TensorBoard's training curves; it is made if need be, in a log directory."""
    return callback._train_writer


def take_up_step(callback: keras.callbacks.TensorBoard) -> None:
    """Makes TensorBoard choose by the batch that it stands at whether the next points are due.

    With an `update_freq` in batches, it has done so by the batch that it began with, also for points of the epoch.
    """
    if callback.update_freq != "epoch":
        callback._pop_writer()
        callback._push_writer(callback._train_writer, callback._global_train_batch)


CALLBACK_STATE: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.CSVLogger: ("keys",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}
"""Which attributes of Keras' own callbacks are their state."""

COPIES_OF_WEIGHTS: frozenset[str] = frozenset({"best_weights"})
"""Those of them that are lists as `model.get_weights` returns them."""

STATELESS_CALLBACKS: tuple[type, ...] = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks of Keras that keep nothing that the next epoch depends on."""
