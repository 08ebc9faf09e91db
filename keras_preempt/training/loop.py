"""What watches over one custom loop: hears notices, agrees with the other workers, saves, and ends the process.

The loop itself only counts its boundaries; everything else is here. Nothing here refers to the handler that the
user holds, so that deleting that one ends the watch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import tensorflow as tf

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.backend.tensorflow import internals
from keras_preempt.backend.tensorflow.loop_checkpoints import LoopCheckpoints
from keras_preempt.backend.tensorflow.place import Place
from keras_preempt.notices.coordination_key import notice_of
from keras_preempt.notices.platform import GENERIC
from keras_preempt.notices.termination import EXIT_NOT_SAVED, TerminationConfig, complete
from keras_preempt.report.events import EventLog
from keras_preempt.report.status import Status
from keras_preempt.training import leaving
from keras_preempt.training.drill import Drill
from keras_preempt.training.listening import Listening
from keras_preempt.training.loop_order import CallOrder
from keras_preempt.training.propagation import Propagation
from keras_preempt.training.runtime import Runtime

logger = logging.getLogger("keras_preempt")

_loops = 0
"""How many loops this process has watched. The workers of a job run one program, so it is the same on all."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and named arguments for a save."""


class LoopWatch:
    """The watch over one loop of one process.

    Args:
        place: Which process this is.
        coordinator: How the workers talk to each other.
        checkpoints: What is saved.
        config: How notices arrive and how the process ends.

    Attributes:
        order: Whether the loop's calls come before its steps; there once it is started.
        number: How many loops this process has watched before and with this one.
        runtime: Where the loop counts its boundaries.
        over: Whether the watch has ended.
        steps_at_start: The number of runs before this process began.
    """

    def __init__(
        self, place: Place, coordinator: Coordinator, checkpoints: LoopCheckpoints, config: TerminationConfig
    ) -> None:
        global _loops
        _loops += 1
        self.number = _loops
        self.over = False
        self.order: CallOrder
        self._place = place
        self._checkpoints = checkpoints
        self._termination = complete(config, GENERIC)  # Until it is known where this is.
        self._drill: Drill | None = None
        self._owner = os.getpid()
        self._answered: frozenset[int] = frozenset()  # Who was under notice at the last save with time left.
        self._saved: int | None = None  # The number of runs in what was restored, or saved here.
        self._status = Status()
        self.steps_at_start = 0
        # Counted downwards: the numbers from 1 are those of fits.
        self.runtime = Runtime(
            coordinator, EventLog(place.member), -self.number, self._termination.grace_period
        )
        self._propagation = Propagation(coordinator, remote=place.workers)
        self._listening = Listening(self.runtime, coordinator, place, config)

    def start(self) -> None:
        """Restores the latest checkpoint and takes part in rounds from now on.

        Raises:
            BaseException: Whatever a restore can raise; the watch has ended then.
        """
        try:
            self._start()
        except BaseException as error:
            self.abandon(f"{type(error).__name__} at the start: {error}")
            raise

    def _start(self) -> None:
        path = self._checkpoints.restore()
        self.order = self._checkpoints.call_order()
        self.steps_at_start = runs = self._checkpoints.count.runs
        if path is not None:
            self._saved = runs
            logger.info("Continuing from %s, after %d runs.", path, runs)
        self.runtime.pace.to_save = self._checkpoints.size()
        self.runtime.at_risk = self._at_risk
        self.runtime.start()
        self._termination = self._listening.hear_platform()
        self._drill = Drill.from_environment(self._place.member)
        if self._drill is not None or self._asks_tensorflow:
            self.runtime.every_boundary = self.runtime.attention = True
        self.runtime.pace.leave(self.runtime.entered)
        self._status.began_training()

    @property
    def steps_run(self) -> int:
        """The number of runs that this process has made."""
        return self._checkpoints.count.runs - self.steps_at_start

    # -- Boundaries -------------------------------------------------------------------------------------

    def boundary(self, arguments: Arguments) -> None:
        """The slow way through a boundary that the loop has just entered; may not return.

        Raises:
            SystemExit: The state is saved and this process is to be started again.
            Preempted: The same, and the user's exit_fn has returned.
        """
        if self.over or os.getpid() != self._owner:
            return
        position = self._position()
        self._listening.look_again()
        if self._drill is not None and self._drill.strike(position):
            self._drill = None
            self.runtime.every_boundary = self._asks_tensorflow
        if self._asks_tensorflow:
            try:
                internals.check_preemption(None)
            except tf.errors.AbortedError as error:
                self.leave_for(error, arguments)
                raise
        plan = self.runtime.boundary(position)
        if plan is None:
            return
        if plan.kind is Kind.FINISHED and not plan.doomed:
            logger.error(
                "Another worker has ended its training after %d runs; this one goes on. Nothing can be agreed on any "
                "more, so a notice will NOT be answered. All workers must run the same program.",
                position.batch,
            )
            self.abandon("another worker has ended its training")
            return
        if plan.goes_on:
            self._save_and_go_on(plan, position, arguments)
        else:
            self._leave(position, saved=self._save(position, arguments) is None)

    @property
    def _asks_tensorflow(self) -> bool:
        """Whether TensorFlow's own op is asked before each run, which also sees what runs on the remote workers."""
        return bool(self._place.workers) and internals.check_preemption_is_linked()

    def leave_for(self, error: BaseException, arguments: Arguments) -> None:
        """Saves and leaves, if the error says that a remote worker was preempted; returns if it says something else.

        Raises:
            SystemExit: See `boundary`.
            Preempted: See `boundary`.
        """
        task = internals.task_preempted_by(error)
        if self.over or task is None or not self._place.workers or os.getpid() != self._owner:
            return
        self.runtime.notices.append(notice_of(task))
        logger.warning("%s was preempted: saving now.", task)
        tf.experimental.async_clear_error()  # Else the save would raise the same error, after steps that do not wait.
        position = self._position()
        self._leave(position, saved=self._save(position, arguments) is None)

    def _position(self) -> Position:
        # Alike at the end: a worker whose program ends here has the state that the others have.
        runs = self._checkpoints.count.runs
        return Position(0, "train", runs, runs)

    def _save_and_go_on(self, plan: Plan, position: Position, arguments: Arguments) -> None:
        if plan.kind is Kind.PREEMPTED and self._answered.intersection(plan.doomed):
            # A further worker has got a notice, and what stands since the first save is counted down already. All
            # workers know the same plans, so that all come to this.
            logger.warning("Another notice, after %d runs: the last save is still to come.", position.batch)
        else:
            error = self._save(position, arguments)
            if error is not None and self._place.members > 1:
                # The others may wait in a collective for what this worker has not done.
                raised = self.settle(error)
                self.abandon("its save has failed")
                raise raised
        if plan.kind is Kind.PREEMPTED:
            self._answered = frozenset(plan.doomed)
        self.runtime.acted()
        left = self.runtime.trains_on_for
        if left is not None:
            logger.warning("Training goes on for about %.0f s, then comes the last save.", left)

    def _save(self, position: Position, arguments: Arguments) -> Exception | None:
        """Saves; returns why that failed, if it did."""
        pace = self.runtime.pace
        pace.save_began()
        began = time.monotonic()
        try:
            what = self._checkpoints.save(*arguments)
        except Exception as error:  # TensorFlow's, the file system's or save_fn's: the exit status tells.
            pace.saved(None)
            logger.exception("The state after %d runs was NOT saved.", position.batch)
            return error
        pace.saved(time.monotonic() - began)
        self._saved = position.batch
        logger.warning("Saved %s, after %d runs.", what, position.batch)
        return None

    def _last_saved(self) -> int | None:
        """The number of runs that the last save holds, whoever made it; None if there is none."""
        known = [runs for runs in (self._saved, self._checkpoints.count.written) if runs is not None]
        return max(known, default=None)

    def _at_risk(self) -> str:
        last = self._last_saved()
        return "everything that was trained" if last is None else f"what was trained since run {last}"

    def _leave(self, position: Position, *, saved: bool) -> NoReturn:
        code = self._termination.exit_code if saved else EXIT_NOT_SAVED
        self._status.saved, self._status.exit_code = saved, code
        with leaving.whatever_happens("Leaving the other workers"):
            self.runtime.leave()
        if not saved:
            logger.error(
                "Preempted, and NOT saved after %d runs: %s is lost.", position.batch, self._at_risk()
            )
        self._listening.leave_with(self._termination, code)
        with leaving.whatever_happens("Ending what was started for the loop"):
            self.abandon("preempted")
        with leaving.whatever_happens("Waiting for the workers"):
            leaving.wait_for_workers(self._termination, self._place, self.runtime.notices)
        where = f"saved in {self._checkpoints.directory}" if saved else "NOT saved"
        what = f"its state after {position.batch} runs is {where}. Make a new handler to resume."
        leaving.leave(self._termination, code, what)

    # -- The end ----------------------------------------------------------------------------------------

    def finish(self, arguments: Arguments) -> None:
        """The last boundary: all know that training is over. The state is saved if a notice stands."""
        if self.over or os.getpid() != self._owner:
            return
        try:
            plan = self.runtime.finish(self._position())
            if plan is not None and plan.target > self.runtime.entered + 1:
                logger.error(
                    "Training ends here after %d runs, and goes on at another worker. All workers must run the same "
                    "program.",
                    self._checkpoints.count.runs,
                )
            elif plan is not None and plan.doomed:
                self._save(self._position(), arguments)
                logger.warning("The notice came at the end of training: the finished state is saved.")
            self.runtime.leave()
        finally:
            self.abandon("training is over")

    def settle(self, error: Exception) -> BaseException:
        """Tells the others of an error that ends training here; returns what to raise, see `Propagation.settle`."""
        if self.over or self._propagation.origin is not None or os.getpid() != self._owner:
            return error  # It is nobody else's affair, or has passed through here before, on its way out.
        return self._propagation.settle(error)

    def abandon(self, why: str) -> None:
        """Ends all that was started, without a further word with the others but this one. Can be called twice."""
        if self.over or os.getpid() != self._owner:
            return
        self.over = True
        with contextlib.ExitStack() as closing:  # The last line first, and every one of them.
            closing.callback(self._write_status)
            closing.callback(self._listening.stop)
            closing.callback(self.runtime.close, why)

    def _write_status(self) -> None:
        self._status.notices = [notice.received_at for notice in self.runtime.notices]
        self._status.spent("hold", self.runtime.hold_seconds)
        self._status.last_saved = self._last_saved() or 0
        self._status.write(self._place.member, 0, self)
