"""`PreemptionCheckpointHandler`: saves a custom loop at a preemption, in place of TensorFlow's class of that name."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import tensorflow as tf

from keras_preempt.backend.seam import backend
from keras_preempt.backend.tensorflow.loop_checkpoints import LoopCheckpoints
from keras_preempt.drilled import hooks
from keras_preempt.notices.termination import Preempted, TerminationConfig
from keras_preempt.process import log
from keras_preempt.report.delivery import OnEvent, check_on_event
from keras_preempt.training.leave import leaving
from keras_preempt.training.leave.propagation import tell_uncaught_loss
from keras_preempt.training.run.loop import Arguments, Loop
from keras_preempt.training.save.resuming import ResumedFrom
from keras_preempt.training.start.side_by_side import join_loop

Result = TypeVar("Result")

_NOTHING: Arguments = ((), {})

_END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class PreemptionCheckpointHandler:
    """Saves a custom training loop when the job is about to be preempted, and restores it when it starts again.

    Takes the place of `tf.distribute.experimental.PreemptionCheckpointHandler`: change the import. When any worker
    gets a notice, all workers stop before the same call of `run`, save, and exit with the same status. For what is
    better than in TensorFlow's class, and what is different, see docs/custom-loops.md.

    Training is over when `close` is called, a ``with`` block of the handler ends, the handler is deleted, or the
    program ends. A notice that came since the last call is answered there.

    Args:
        cluster_resolver: The strategy's `cluster_resolver`. None for that of the strategy in whose scope the handler
            is made; if that has none, this process trains alone.
        checkpoint_or_checkpoint_manager: What to save: a `tf.train.Checkpoint`, of which the latest stays in
            `checkpoint_dir`, or a `tf.train.CheckpointManager` with rules of its own. With several workers, each
            must give its manager a directory of its own, or pass a `tf.train.Checkpoint`.
        checkpoint_dir: The directory, which all workers can read. Not for a manager, which has one.
        termination_config: How notices arrive and how the job ends: a `TerminationConfig` of this package or of
            TensorFlow. None for SIGTERM, what the platform announces, and the platform's exit status.
        staging_dir: An existing directory on a local disk. All workers but the first save into it as well, since
            saving takes all of them, and remove that at once. None: the system's temporary directory.
        on_event: As for `PreemptionCallback`; docs/events.md says which events a custom loop tells.

    Raises:
        ValueError: An argument is invalid.
        CoordinationLost: There are several workers and no coordination service.
        tensorflow.errors.OpError: The latest checkpoint cannot be read.

    Example:
        >>> handler = PreemptionCheckpointHandler(strategy.cluster_resolver, checkpoint, "/shared/run")
        >>> with handler:
        ...     while int(step) < STEPS:
        ...         handler.run(train_step, iterator)
        ...         step.assign_add(1)
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Any,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: Any = None,
        *,
        staging_dir: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        log.show()
        check_on_event(on_event)
        if cluster_resolver is not None and not hasattr(cluster_resolver, "cluster_spec"):
            raise ValueError(
                "Expected cluster_resolver to be that of the strategy, strategy.cluster_resolver, or None. Received: "
                f"{cluster_resolver!r}."
            )
        tell_uncaught_loss()
        config = _as_ours(termination_config)
        place, coordinator = join_loop(cluster_resolver)
        checkpoints = LoopCheckpoints(
            checkpoint_or_checkpoint_manager,
            checkpoint_dir,
            chief=place.member == 0,
            save_fn=config.save_fn,
            staging_dir=staging_dir,
        )
        self._where = f"{checkpoints.directory!r}: worker {place.member} of {place.members}"
        self._count = checkpoints.count
        self._arguments = _NOTHING
        self._failed_at = -1
        self._loop = Loop(place, coordinator, checkpoints, config, on_event, hooks.for_loop)
        self._runtime = self._loop.runtime
        if not _living:
            atexit.unregister(_end_all)
            atexit.register(_end_all)  # After TensorFlow's own, so that it is called before them.
        _living.add(self)

    def __repr__(self) -> str:
        """Says where it saves, which worker this is, and how far the loop has come."""
        over = ", over" if self._loop.over else ""
        return f"<PreemptionCheckpointHandler of {self._where}, {self.total_run_calls} calls{over}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses to be copied or pickled: a loop has one handler, which ends with it."""
        raise TypeError(
            "Expected each loop to have a PreemptionCheckpointHandler of its own. Received: a copy, as `copy` and "
            "`pickle` make one. Make the handler in the process in which the loop runs."
        )

    @property
    def resumed(self) -> ResumedFrom | None:
        """Where this loop has resumed from, known as soon as the handler is made; None if there was no checkpoint."""
        return self._loop.resumed

    @property
    def total_run_calls(self) -> int:
        """How many calls of `run` and `save_checkpoint_if_preempted` have returned, over all restarts."""
        return self._count.runs

    def run(self, distributed_train_function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Calls the function. If there is a notice, saves before that, and may not return.

        Give it the iterator and not a batch: a batch that was drawn before this call and not trained on is lost.

        Args:
            distributed_train_function: One training step, or as many as may pass before the loop can stop.
            *args: For the function.
            **kwargs: For the function.

        Returns:
            What the function returns.

        Raises:
            SystemExit: The state is saved, and this process is to be started again.
            Preempted: The same, and `exit_fn` has returned.
            Exception: What the function raises; or the error that it has raised on another worker, of the same type,
                with its text and the number of that worker.
        """
        runtime = self._runtime
        # Before attention is looked at: see alignment.
        runtime.entered = runtime.count[0] = runtime.entered + 1
        if runtime.attention:
            self._loop.boundary(_NOTHING)
        try:
            result = distributed_train_function(*args, **kwargs)
        except Exception as error:
            self._fail(error)
            raise
        self._count.runs += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Saves if there is a notice, and may not return. To be called once for each step, in place of `run`.

        Call it before each step or after each. The first call finds out which: whether anything of what is saved has
        changed since the handler was made. `total_run_calls` is the number of steps in the checkpoint either way.

        Args:
            *args: For `tf.train.CheckpointManager.save`, or for `save_fn`.
            **kwargs: The same.

        Raises:
            SystemExit: The state is saved, and this process is to be started again.
            Preempted: The same, and `exit_fn` has returned.
        """
        self._arguments = (args, kwargs)
        steps_first = self._loop.order.steps_first
        if steps_first:
            self._count.runs += 1
        runtime = self._runtime
        runtime.entered = runtime.count[0] = runtime.entered + 1
        if runtime.attention:
            self._loop.boundary(self._arguments)
        if not steps_first:
            self._count.runs += 1  # The step that follows. Not before: the checkpoint does not have it.

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Answers at its end a notice that came during the last call of `run` in the block.

        On remote workers, as with TPUStrategy, it also answers the error by which TensorFlow says that one was
        preempted.

        Raises:
            SystemExit: The state is saved, and this process is to be started again.
            Preempted: The same, and `exit_fn` has returned.
        """
        try:
            yield
        except Exception as error:
            self._loop.leave_for(error, self._arguments)
            self._fail(error)
            raise
        self._runtime.enter()
        if self._runtime.attention:
            self._loop.boundary(self._arguments)

    def close(self) -> None:
        """Says that training is over: saves if there is a notice, and ends what was started. Can be called twice.

        With several workers, all have to call it after the same number of runs.

        Raises:
            KeyboardInterrupt: The user has pressed Ctrl-C when it was too late to leave before the end.
        """
        if self._loop.finish(self._arguments):
            leaving.interrupt("training was over.")

    def __enter__(self) -> PreemptionCheckpointHandler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            if isinstance(error, Exception):
                self._loop.leave_for(error, self._arguments)
                self._fail(error)
        finally:
            self._loop.abandon(f"its loop was left by {kind.__name__}: {error}")

    def __del__(self) -> None:
        # Not after an error in __init__, nor at the end of the program, when modules may be gone already.
        if hasattr(self, "_loop") and not self._loop.over:
            self._end("deleted", threading.current_thread() is threading.main_thread())

    def _fail(self, error: Exception) -> None:
        """Reports an error to the other workers, or raises in its place the one that another worker has reported."""
        if isinstance(error, (*_END_OF_DATA, Preempted)):
            return
        self._failed_at = self._count.runs
        if backend().errors.task_preempted_by(error) is not None:
            return  # Nobody has failed: the end of the block answers it.
        told = self._loop.settle(error)
        try:
            if told is not error:
                raise told from error
        finally:
            del told, error  # Else the errors would hold this frame, which holds them, and the handler.

    def _end(self, why: str, possible: bool) -> None:
        """Ends a loop whose user has not said that it is over. The state of half a step is never saved."""
        if possible and self._failed_at != self._count.runs:
            self._loop.finish(self._arguments)
        else:
            self._loop.abandon(f"its handler was {why} after an error, or outside the main thread")


def _as_ours(config: Any) -> TerminationConfig:
    if config is None:
        return TerminationConfig()
    if isinstance(config, TerminationConfig):
        return config
    if isinstance(config, tf.distribute.experimental.TerminationConfig):
        return TerminationConfig(
            config.termination_watcher_fn, config.exit_fn, config.grace_period, config.save_fn
        )
    raise ValueError(
        "Expected termination_config to be a TerminationConfig of keras_preempt or of tf.distribute.experimental. "
        f"Received: {config!r}."
    )


_living: weakref.WeakSet[PreemptionCheckpointHandler] = weakref.WeakSet()


def _end_all() -> None:
    """Closes the handlers before the interpreter ends, if their user has not."""
    error = getattr(sys, "last_value", None)  # What ends the program, if anything does.
    with contextlib.ExitStack() as ending:
        # In the same order on all workers: the last line first, and every one of them.
        for handler in sorted(_living, key=lambda handler: -handler._loop.number):
            ending.callback(handler._end, "given up at the end of the program", error is None)
            if isinstance(error, Exception):
                ending.callback(handler._loop.settle, error)
