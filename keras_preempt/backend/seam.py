"""What the rest of this package needs of the backend that Keras runs on, and the choice of one.

A backend is a folder beside this module with a class that satisfies `Backend`. Everything above `backend/` reaches it
through `backend()` and names no backend; `backend/keras/`, `place` and `hung_on_loss` belong to none. Four things pass
through these functions that only a backend understands: a *strategy* (how a model's replicas share its training), a
*part* (what stands behind a variable on one replica of this worker), a *pipeline* (what batches come from) and its
*iterators*.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from keras_preempt.backend import requirements
from keras_preempt.backend.copies import Runs as Runs
from keras_preempt.backend.place import Job, Place, RemoteWorkers
from keras_preempt.backend.seam_of_input import Datasets, Reshuffling, Tap

if TYPE_CHECKING:
    from keras_preempt.agreement.coordinator import Coordinator
    from keras_preempt.backend.keras.input_feed import InputFeed
    from keras_preempt.backend.keras.running_fit import RunningFit, TracedStep
    from keras_preempt.checkpoint.boxes import Box, Piece, Point
    from keras_preempt.checkpoint.exchange import Gather
    from keras_preempt.checkpoint.tensors import Array

_BACKENDS = {
    "jax": "keras_preempt.backend.jax.backend",
    "tensorflow": "keras_preempt.backend.tensorflow.backend",
}
"""The module of each backend, by Keras' name for it; its `BACKEND` is the backend."""


class Variables(Protocol):
    """A variable's parts on this worker, and how to read and assign them."""

    def plain_variables(self, model: Any) -> Sequence[Any]:
        """Returns the variables in attributes of the model that Keras does not track, with Keras' attributes."""

    def named(self, variable: Any) -> Any:
        """Returns a variable of the backend's own, under its own name, with Keras' attributes."""

    def parts(self, strategy: Any, variable: Any) -> tuple[Any, ...]:
        """Returns the parts of a variable on this worker, one for each replica."""

    def identity(self, part: Any) -> int:
        """Returns the `id` of the resource that holds the value of a part."""

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the values of parts, valid until the next assignment. An array stands for a part with its value."""

    def copies(self, components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
        """Returns the values of parts as copies; `runs` says which elements are needed, by name."""

    def assign(self, components: Iterable[Any], array: Array) -> None:
        """Assigns a value to parts. The array must not be changed any more."""

    # -- Variables that are divided among processes ----------------------------------------------------

    def pieces(self, variable: Any) -> tuple[Piece, ...] | None:
        """Returns the pieces of a variable that is divided among processes, with the members that hold each.

        They make up the variable exactly once, and are the same in the same order on every process. For such a variable
        `views`, `copies` and `assign` are not called.

        Returns:
            None if this process holds all of it. Then the functions below are not called with the variable.
        """

    def needed(self, variable: Any) -> tuple[tuple[Point, Point], ...]:
        """Returns start and stop of the distinct pieces that this process holds."""

    def read_pieces(self, variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
        """Returns the values of pieces that this process holds.

        Args:
            variable: The variable.
            boxes: The pieces.
            copy: Whether the values must outlive the next assignment to the variable.
        """

    def assign_pieces(self, variable: Any, values: Mapping[Box, Array]) -> None:
        """Assigns all pieces that this process holds. The arrays must not be changed any more."""

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable, which changes later, and not a tensor."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor or a variable."""

    def to_tensor(self, value: Any) -> Any:
        """Returns a NumPy value as a tensor of the same dtype."""


class Errors(Protocol):
    """The errors of the backend: what one says of another worker, and how it is told to another process.

    Attributes:
        ends_collectives: Whether `Coordinator.report_error` ends the collectives that wait for this process.
    """

    @property
    def ends_collectives(self) -> bool:
        """See the class."""

    def described(self, error: BaseException) -> tuple[int, str]:
        """Returns the backend's code of an error, 0 if it is not the backend's, and its text."""

    def of_code(self, code: int, text: str) -> Exception | None:
        """Returns the backend's error of that code with that text; None if it has none of the code."""

    def code_to_report(self, code: int) -> int:
        """Returns the code under which the other workers are told of an error with a code of `described`."""

    def may_hide_another(self, error: BaseException) -> bool:
        """Whether an error may be all that is left of the connection to a worker that has failed."""

    def says_a_worker_is_gone(self, error: BaseException) -> bool:
        """Whether an error of the backend says that another worker is gone."""

    def says_the_service_is_out_of_reach(self, error: BaseException) -> bool:
        """Whether an error says that the coordination service does not answer."""

    def says_a_loss(self, error: BaseException, remote: RemoteWorkers) -> bool:
        """Whether an error says that another worker, or one of the remote workers, is gone."""

    def lost(self, error: BaseException) -> Exception:
        """Returns an error that says so as a `WorkerLost` with its text."""

    def end_without_others(self) -> None:
        """Called when this process is about to end by an error: it must not wait for the others at its end."""

    def before_a_hard_end(self) -> None:
        """Called when this process is about to end by an error at once, without what Python does at its end."""

    def check_preemption(self, seen: str | None) -> None:
        """Raises the backend's own error if a worker was preempted; `seen` is the task that is known to be."""

    def check_preemption_is_linked(self) -> bool:
        """Whether `check_preemption` can find out by itself."""

    def task_preempted_by(self, error: BaseException | None) -> str | None:
        """Returns the task that an error says was preempted; None for another error."""

    def forget_asynchronous(self) -> None:
        """Forgets the error of operations that nobody has waited for, which the next operation would raise again."""


class RunCount(Protocol):
    """How many calls a custom loop has made, over all its restarts."""

    runs: int
    written: int | None
    """The number in the checkpoint that was written last; None if none was."""


class CallOrder(Protocol):
    """Whether a custom loop calls before its steps or after them."""

    @property
    def steps_first(self) -> bool:
        """Whether a step was done when this was first asked."""


class LoopCheckpoints(Protocol):
    """The checkpoints of a custom loop, in a format of the backend's own."""

    @property
    def count(self) -> RunCount:
        """The number of calls that goes with the state."""

    @property
    def directory(self) -> str:
        """Where the checkpoints stay."""

    def restore(self) -> str | None:
        """Restores the latest checkpoint; returns its path, or None if there is none."""

    def call_order(self) -> CallOrder:
        """Finds out whether calls come before the steps; to be called when the state is restored."""

    def size(self) -> int:
        """Returns the bytes of the latest checkpoint; 0 if that is not known."""

    def save(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Saves now, on all workers; returns what was saved, in words."""


class FirstUse(Protocol):
    """A watch over variables that come into being."""

    def stop(self) -> None:
        """Ends it. Can be called twice."""


class Repaired(Protocol):
    """The repairs of Keras, while they are in place."""

    def undo(self) -> None:
        """Gives them up. More calls do nothing."""


class Backend(Protocol):
    """A backend of Keras, as this package sees it.

    Attributes:
        hears_by_key: Whether its runtime tells all processes of a notice, and which of them it is for, under
            `place.PREEMPTION_NOTICE_KEY`.
        runs_ahead: Whether a step is still being computed when the training function returns; `RunningFit.finish_hooks`
            then waits for what callbacks do with its logs.
    """

    variables: Variables
    datasets: Datasets
    reshuffling: Reshuffling
    errors: Errors

    @property
    def hears_by_key(self) -> bool:
        """See the class."""

    @property
    def runs_ahead(self) -> bool:
        """See the class."""

    def versions(self) -> dict[str, str]:
        """Returns the versions of what a checkpoint depends on, by package, for its manifest."""

    def repair(self) -> Repaired:
        """Repairs what keeps the installed Keras from training on several replicas or workers."""

    # -- Place -----------------------------------------------------------------------------------------

    def strategy_of(self, model: Any) -> Any:
        """Returns the strategy that a model trains under."""

    def replicas(self, strategy: Any) -> int:
        """Returns how many replicas train together, in all processes."""

    def replicas_differ(self, strategy: Any) -> bool:
        """Whether a variable may have another value on each replica."""

    def layout(self, strategy: Any) -> str:
        """Returns how variables are divided among the devices, in words; empty if they are not.

        What it says is part of what a run trains on: another layout rounds otherwise.
        """

    def place(self, strategy: Any) -> Place:
        """Finds this process among the workers of its strategy. Raises ValueError if they cannot be aligned."""

    def place_of_loop(self, resolver: Any) -> tuple[Place, Any]:
        """Finds this process among the workers of a custom loop; also returns the strategy if that tells it."""

    def in_a_cluster(self) -> bool:
        """Whether the environment says that this process is one of several training workers."""

    def job(self) -> Job | None:
        """Returns the processes that the backend's runtime has connected with this one; None if it has not."""

    def remote_workers(self) -> RemoteWorkers:
        """Returns the remote workers that this process is connected to."""

    def coordinator(self, place: Place) -> Coordinator:
        """Returns how the processes of a job talk to each other. Raises CoordinationLost if they cannot."""

    def gather(self, place: Place, patience: float) -> Gather | None:
        """Returns how the processes of a job give each other bytes over the network that they train on.

        Args:
            place: This process; there are others.
            patience: Seconds that one of its calls waits for the other processes. Whatever goes wrong in a call is the
                end of training: then it raises the error that a lost worker makes.

        Returns:
            None if the backend has no such way.
        """

    def notice_keys(self) -> Coordinator:
        """Returns where the backend's runtime leaves its own notices. Raises CoordinationLost if it is not there."""

    def described(self, model: Any) -> str:
        """Returns how Keras describes a model, as JSON. Raises what Keras does for one that it cannot describe."""

    def early_notice(self, timeout: float = 0.0) -> str | None:
        """Returns when the backend's runtime has heard a termination signal that Python did not; None if it has not.

        Args:
            timeout: Seconds to wait for it: a signal that has just come may be told of with a delay.
        """

    def leave_together(self) -> None:
        """Called when this process is about to end as all others do, after a save: it may have to wait for them."""

    def unordered_sums(self) -> str:
        """Returns what to do about a GPU of this process that may add numbers in another order each time; else ""."""

    def tell_end(self) -> None:
        """Called right before this process is ended although Python is not through: the others may wait for it."""

    def leave_refused(self) -> None:
        """Called when this process is about to end untrained, by an error that the others of its job do not have."""

    # -- One fit ---------------------------------------------------------------------------------------

    def running_fit(self, model: Any) -> RunningFit:
        """Finds the fit of a model that is calling this callback hook."""

    def feed(self, epoch_iterator: Any) -> InputFeed:
        """Returns the feed of an epoch iterator of Keras."""

    def tap(self, distributed: Any) -> Tap | None:
        """Returns a tap below what Keras iterates over; None where no strategy cuts it for this process alone."""

    def trace(
        self, model: Any, dataset: Any, *, early: bool = True, again: bool = False
    ) -> TracedStep | None:
        """Traces the training step of a running fit; None if it cannot be traced before its first step.

        Args:
            model: The model.
            dataset: The training data.
            early: Whether it may be traced now, if it is traced before it runs.
            again: Whether its first run has to trace it again, as callbacks may set what it has read.
        """

    def traced_validation(self, model: Any, dataset: Any) -> TracedStep | None:
        """Returns the trace that the validation steps of a fit have used; None if there is none.

        Args:
            model: The model.
            dataset: What Keras iterates over in the validation.
        """

    def validation_may_draw(self, model: Any) -> bool:
        """Whether the code of a validation step refers to random numbers that the training step does not show."""

    def stateful_random_operations(self, traced: Any) -> Sequence[Any]:
        """Names the operations of a traced step whose draws a restart may not repeat."""

    def before_capture(self, model: Any) -> None:
        """Makes the variables of a model hold what its last step has left, before they are read or assigned to."""

    def watch_first_use(self, known: Iterable[Any], look: Callable[[Any], bool]) -> FirstUse:
        """Calls `look` with each variable that comes into being, before anything uses it, until it returns True."""

    # -- TensorBoard -----------------------------------------------------------------------------------

    def summary_writer(self, callback: Any) -> Any:
        """Returns the writer of a TensorBoard callback's training curves. Raises OSError if that fails."""

    def write_points(self, writer: Any, values: Mapping[str, float], step: int) -> None:
        """Writes points of one step, and writes them out. Raises OSError if that fails."""


@functools.cache
def backend() -> Backend:
    """Returns the backend that Keras runs on.

    Raises:
        ImportError: This package does not work with it, or with the installed version of it.
    """
    requirements.check()
    import keras  # Here, since what trains nothing works without it.

    return cast(Backend, import_module(_BACKENDS[keras.backend.backend()]).BACKEND)
