"""What the rest of this package needs of the backend that Keras runs on, and the choice of one.

A backend is a folder beside this module with a subclass of `Backend`, which overrides what differs from one process
that trains alone. Everything above `backend/` reaches it through `backend()` and names no backend; `backend/keras/`,
`place` and `hung_on_loss` belong to none. Only a backend understands three things that pass through these methods: a
*strategy* (how a model's replicas share its training), a *part* (what is behind a variable on one replica of this
worker), and the *dataset* that Keras iterates over. What is known about `tf.data` pipelines, which Keras takes on every
backend, is in `pipelines`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, Coordinator, LocalCoordinator
from keras_preempt.backend import requirements
from keras_preempt.backend.copies import Runs as Runs
from keras_preempt.backend.place import NO_WORKERS, Job, Neighbours, Place, RemoteWorkers
from keras_preempt.backend.user_code import is_a

if TYPE_CHECKING:
    from keras_preempt.backend.keras.input_feed import InputFeed
    from keras_preempt.backend.keras.running_fit import RunningFit, TracedStep
    from keras_preempt.backend.tensorflow.loop_checkpoints import LoopCheckpoints as LoopCheckpoints
    from keras_preempt.backend.tensorflow.tap import Tap as Tap
    from keras_preempt.checkpoint.exchange import Gather
    from keras_preempt.checkpoint.tensors import Array
    from keras_preempt.checkpoint.values import Box, Piece, Point

_BACKENDS = {
    "jax": "keras_preempt.backend.jax.backend",
    "tensorflow": "keras_preempt.backend.tensorflow.backend",
    "torch": "keras_preempt.backend.torch.backend",
}
"""The module of each backend, by Keras' name for it, whose `BACKEND` it is."""


class Variables:
    """A variable's parts on this worker, and how to read and assign them. By default, a variable is its only part."""

    def plain_variables(self, model: Any) -> Sequence[Any]:
        """Returns the variables in attributes of the model that Keras does not track, with Keras' attributes."""
        return ()

    def named(self, variable: Any) -> Any:
        """Returns a variable of the backend's own, under its own name, with Keras' attributes."""
        return variable

    def parts(self, strategy: Any, variable: Any) -> tuple[Any, ...]:
        """Returns the parts of a variable on this worker, one for each replica."""
        return (variable,)

    def identity(self, part: Any) -> int:
        """Returns a number that is the same for two objects that stand for one part."""
        return id(part)

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the values of parts, valid until the next assignment. An array stands for a part with its value."""
        raise NotImplementedError

    def copies(self, components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
        """Returns the values of parts as copies that outlive every assignment.

        `runs` says which elements are needed, by name; without an entry, all of them. Only these are copied.
        """
        raise NotImplementedError

    def assign(self, components: Iterable[Any], array: Array) -> None:
        """Assigns a value to parts, which may keep using its memory: the array must not be changed any more."""
        raise NotImplementedError

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable, which changes later, and not a tensor."""
        import keras  # Here, since what trains nothing works without it.

        return is_a(value, keras.Variable)

    def may_change(self, value: Any) -> bool:
        """Whether a value that a metric has returned may be another one once the metric has counted more."""
        return self.is_variable(value)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor or a variable."""
        raise NotImplementedError

    def to_tensor(self, value: Any) -> Any:
        """Returns a NumPy value as a tensor of the same dtype."""
        raise NotImplementedError

    # -- Variables that are divided among processes ----------------------------------------------------

    def pieces(self, variable: Any) -> tuple[Piece, ...] | None:
        """Returns the pieces of a variable that is divided among processes, with the members that hold each.

        Together they are the variable, and they are the same in the same order on every process. For such a variable
        `views`, `copies` and `assign` are not called. None if this process holds all of the variable: then the methods
        below are not called.
        """
        return None

    def needed(self, variable: Any) -> tuple[tuple[Point, Point], ...]:
        """Returns start and stop of the distinct pieces that this process holds."""
        raise NotImplementedError

    def read_pieces(self, variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
        """Returns the values of pieces that this process holds; with `copy`, they outlive the next assignment."""
        raise NotImplementedError

    def assign_pieces(self, variable: Any, values: Mapping[Box, Array]) -> None:
        """Assigns all pieces that this process holds. The arrays must not be changed any more."""
        raise NotImplementedError


class Errors:
    """The errors of the backend: what one says about another worker, and how it is reported to another process.

    Attributes:
        ends_collectives: Whether `Coordinator.report_error` ends the collectives that wait for this process.
    """

    ends_collectives = False

    def described(self, error: BaseException) -> tuple[int, str]:
        """Returns the backend's code of an error, 0 if it is not the backend's, and its text."""
        return 0, str(error)

    def of_code(self, code: int, text: str) -> Exception | None:
        """Returns the backend's error of that code with that text; None if it has none of the code."""
        return None

    def code_to_report(self, code: int) -> int:
        """Returns the code under which an error with a code of `described` is reported to the other workers."""
        return code or ABORTED

    def may_hide_another(self, error: BaseException) -> bool:
        """Whether an error may only say that the connection to a worker that has failed is gone."""
        return self.says_a_worker_is_gone(error)

    def says_a_worker_is_gone(self, error: BaseException) -> bool:
        """Whether an error of the backend says that another worker is gone."""
        return False

    def says_the_service_is_out_of_reach(self, error: BaseException) -> bool:
        """Whether an error says that the coordination service does not answer: further calls may never return."""
        return False

    def says_a_loss(self, error: BaseException, remote: RemoteWorkers) -> bool:
        """Whether an error says that another worker, or one of the remote workers, is gone."""
        return self.says_a_worker_is_gone(error)

    def lost(self, error: BaseException) -> Exception:
        """Returns an error that says that a worker is lost as a `WorkerLost` with its text."""
        raise NotImplementedError

    def end_without_others(self) -> None:
        """Called when an error is about to end this process, which must not wait for the others then."""

    def before_a_hard_end(self) -> None:
        """Called right before an error ends this process without what Python does at its end."""

    def check_preemption(self, seen: str | None) -> None:
        """Raises the backend's own error if a worker was preempted; `seen` is the task that is known to be."""

    def check_preemption_is_linked(self) -> bool:
        """Whether `check_preemption` can find out by itself."""
        return False

    def task_preempted_by(self, error: BaseException | None) -> str | None:
        """Returns the task that an error says was preempted, such as "/job:worker/task:1"; None for another error."""
        return None

    def forget_asynchronous(self) -> None:
        """Forgets the error of asynchronous operations, which the next operation would raise again."""


class Backend:
    """A backend of Keras, as this package sees it. By default, one process that trains by itself.

    Attributes:
        name: What people call it.
        feed: The class of the feed of an epoch iterator of Keras.
        fit: The class of a running fit; None for `RunningFit` itself.
        hears_by_key: Whether its runtime tells all processes of a notice for one of them, under
            `place.PREEMPTION_NOTICE_KEY`.
        runs_ahead: Whether a step is still being computed when the training function returns; `RunningFit.finish_hooks`
            then waits for what callbacks do with its logs.
        keeps_global_draws: Whether a checkpoint has the states of all global generators that a step may draw from.
        named_in_runs: Keras' name for it, which the identity of a run has; empty if the types of its variables tell.
    """

    name: str
    variables: Variables
    errors = Errors()
    feed: type[InputFeed]
    fit: type[RunningFit] | None = None
    hears_by_key = False
    runs_ahead = False
    keeps_global_draws = False
    named_in_runs = ""

    def versions(self) -> dict[str, str]:
        """Returns the versions of what a checkpoint depends on, by package, for its manifest."""
        raise NotImplementedError

    def repair(self) -> Callable[[], None]:
        """Repairs what keeps the installed Keras from training on several replicas or workers.

        Returns a function that undoes it; further calls of that do nothing.
        """
        return lambda: None

    # -- Place -----------------------------------------------------------------------------------------

    def strategy_of(self, model: Any) -> Any:
        """Returns the strategy that a model trains under; None for none."""
        return None

    def replicas(self, strategy: Any) -> int:
        """Returns how many replicas train together, in all processes."""
        return 1

    def replicas_differ(self, strategy: Any) -> bool:
        """Whether a variable may have another value on each replica."""
        return False

    def layout(self, strategy: Any) -> str:
        """Returns how variables are divided among the devices, in words; empty if they are not.

        With another layout, rounding differs.
        """
        return ""

    def place(self, strategy: Any) -> Place:
        """Finds this process among the workers of its strategy. Raises ValueError if they cannot be aligned."""
        return Place()

    def place_of_loop(self, resolver: Any) -> tuple[Place, Any]:
        """Finds this process among the workers of a custom loop; also returns the strategy if it was found by that.

        Raises ValueError if it is none of them, or if the loops of this backend have nothing to be found by.
        """
        raise ValueError(
            "Expected PreemptionCheckpointHandler to be used with TensorFlow, of whose custom loops it is a part. "
            f"Received: Keras on {self.name}. Train with model.fit and PreemptionCallback."
        )

    def in_a_cluster(self) -> bool:
        """Whether the environment says that this process is one of several training workers."""
        return False

    def neighbours(self, strategy: Any) -> Neighbours | None:
        """Returns the job of several training workers in which this process trains alone; None if it is in none."""
        return None

    def job(self) -> Job | None:
        """Returns the processes that the backend's runtime has connected with this one; None if it has not."""
        return None

    def remote_workers(self) -> RemoteWorkers:
        """Returns the remote workers that this process is connected to."""
        return NO_WORKERS

    def coordinator(self, place: Place) -> Coordinator:
        """Returns how the processes of a job talk to each other. Raises CoordinationLost if they cannot."""
        return LocalCoordinator()

    reads_together = False
    """Whether `gather` is worth it for what each process can read by itself."""

    def gather(self, place: Place, patience: float) -> Gather | None:
        """Returns how the processes of a job exchange bytes over the network that they train on, if they can.

        A call of it waits `patience` seconds for the others. If it fails, training cannot continue: it raises the error
        of a lost worker.
        """
        return None

    def notice_keys(self) -> Coordinator:
        """Returns where the backend's runtime leaves its own notices. Raises CoordinationLost if it is not there."""
        raise CoordinationLost("This backend has no coordination service.")

    def early_notice(self, timeout: float = 0.0) -> str | None:
        """Returns when the backend's runtime has received a termination signal that Python did not; None if it has not.

        It waits up to `timeout` seconds: a signal that has just come may be reported with a delay.
        """
        return None

    def leave_together(self) -> None:
        """Called when this process, like all others, is about to end after a save: it may have to wait for them."""

    def leave_refused(self) -> None:
        """Called when this process is about to end untrained, by an error that the others of its job do not have."""

    def announce_end(self) -> None:
        """Called right before this process is ended without what Python does at its end: the others may wait for it."""

    def unordered_sums(self) -> str:
        """Returns what to do about a GPU of this process that may add numbers in another order each time; else ""."""
        return ""

    def random_states(self) -> dict[str, Array]:
        """Returns the states of the backend's own global random generators, by name."""
        return {}

    def restore_random_states(self, states: Mapping[str, Array]) -> None:
        """Sets these generators to states that `random_states` has returned."""

    # -- One fit ---------------------------------------------------------------------------------------

    def running_fit(self, model: Any) -> RunningFit:
        """Finds the fit of a model that is calling this callback hook."""
        from keras_preempt.backend.keras.running_fit import running_fit  # Here, as above.

        return running_fit(model, self.feed, self.fit)

    def described(self, model: Any) -> str:
        """Returns how Keras describes a model, as JSON. Raises what Keras does for one that it cannot describe."""
        return str(model.to_json())

    def tap(self, distributed: Any) -> Tap | None:
        """Returns a tap below what Keras iterates over; None unless a strategy cuts it for this process alone."""
        return None

    def trace(
        self, model: Any, dataset: Any, *, early: bool = True, again: bool = False
    ) -> TracedStep | None:
        """Traces the training step of a running fit; None if it cannot be traced before its first step.

        `early`: it may be traced now. `again`: its first run has to trace it again, as callbacks may set what it reads.
        """
        return None

    def traced_validation(self, model: Any, dataset: Any) -> TracedStep | None:
        """Returns the trace that the validation steps of a fit over a dataset have used; None if there is none."""
        return None

    def validation_may_draw(self, model: Any) -> bool:
        """Whether the code of a validation step refers to random numbers outside of Keras."""
        return False

    def unkept(self, model: Any) -> list[str]:
        """Returns, in words, what a model holds that its step may change and no checkpoint has."""
        return []

    def before_capture(self, model: Any) -> None:
        """Called before variables of a model are read or assigned to: makes them hold the result of its last step."""

    def watch_first_use(self, known: Iterable[Any], look: Callable[[Any], bool]) -> Callable[[], None]:
        """Calls `look` with each variable that is made, before anything uses it, until `look` returns True for it.

        Returns a function that ends that, as does dropping the function. By default all variables are known.
        """
        return lambda: None


@functools.cache
def backend() -> Backend:
    """Returns the backend that Keras runs on. Raises ImportError if its installed version is not supported."""
    requirements.check_installed()
    import keras

    return cast(Backend, import_module(_BACKENDS[keras.backend.backend()]).BACKEND)
