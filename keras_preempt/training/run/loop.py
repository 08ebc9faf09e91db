"""One custom loop of one process: takes it from boundary to boundary, has it saved, and ends it.

The loop itself only counts its boundaries; everything else is here. Nothing here refers to the handler that the
user holds, so that deleting that one ends the loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.notices.coordination_key import notice_of
from keras_preempt.notices.termination import TerminationConfig
from keras_preempt.process.heartbeat import Phase
from keras_preempt.process.words import counted
from keras_preempt.report.delivery import OnEvent
from keras_preempt.training.run.participant import Ending, Hook, Participant
from keras_preempt.training.save.resuming import ResumedFrom

if TYPE_CHECKING:
    from keras_preempt.backend.seam import LoopCheckpoints

logger = logging.getLogger("keras_preempt")

_PREEMPTED = Plan(0, Kind.PREEMPTED, (), ())
"""Where no round is called: this process alone decides."""

_loops = 0
"""How many loops this process has begun. The workers of a job run one program, so it is the same on all."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and named arguments for a save."""


class Loop:
    """One loop. It restores the latest checkpoint, and takes part in rounds from then on.

    Raises whatever a restore can raise; everything that was started has ended then. `make_hook`, given the number of
    this worker, returns what else looks at its boundaries.

    Attributes:
        number: How many loops this process has begun before and with this one.
        order: Whether the loop's calls come before its steps.
        steps_at_start: The number of runs before this process began.
    """

    def __init__(
        self,
        place: Place,
        coordinator: Coordinator,
        checkpoints: LoopCheckpoints,
        config: TerminationConfig,
        on_event: OnEvent | None = None,
        make_hook: Callable[[int], Hook] = lambda member: Hook(),
    ) -> None:
        global _loops
        _loops += 1
        self.number = _loops
        self._place = place
        self._checkpoints = checkpoints
        self._answered: frozenset[int] = frozenset()  # Who was under notice at the last save with time left.
        self._saved_as = ""
        self._saved: int | None = None  # The number of runs in what was restored, or saved here.
        self.steps_at_start = 0
        self.resumed: ResumedFrom | None = None
        self._ending = ending = Ending()
        with ending.on_error():
            # Counted downwards: the numbers from 1 are those of fits.
            self._participant = participant = Participant(
                place, coordinator, config, -self.number, ending, on_event=on_event
            )
            self._emit = emit = participant.events.emit
            ending.add(lambda: emit("end", reason=ending.why, step=checkpoints.count.runs))
            ending.add(lambda: participant.write_status(0, self._last_saved() or 0, self))
            self.runtime = runtime = participant.runtime
            path = checkpoints.restore()
            self.order = checkpoints.call_order()
            self.steps_at_start = runs = checkpoints.count.runs
            if path is not None:
                self._saved = runs
                self.resumed = ResumedFrom(runs, None, None, os.path.basename(str(path)))
                logger.info("Continuing from %s, after %s.", path, counted(runs, "run"))
            runtime.pace.to_save = checkpoints.size()
            runtime.at_risk = self._at_risk
            participant.start()
            # TensorFlow's own op is asked before each run, since it also sees what runs on the remote workers.
            participant.always_looks = bool(place.workers) and backend().errors.check_preemption_is_linked()
            participant.set_hook(make_hook(place.member))
            runtime.pace.leave(runtime.entered)
            participant.status.began_training()
            participant.heartbeat.enter(Phase.LOOP, runs, 1)

    @property
    def over(self) -> bool:
        return self._ending.over

    @property
    def steps_run(self) -> int:
        """The number of runs that this process has made."""
        return self._checkpoints.count.runs - self.steps_at_start

    # -- Boundaries -------------------------------------------------------------------------------------

    def boundary(self, arguments: Arguments) -> None:
        """Looks closer at a boundary that the loop has just entered; may not return.

        `arguments` are for a save. Raises SystemExit when the state is saved and this process is to be started again,
        or Preempted, when the user's exit_fn has returned.
        """
        if self.over:
            return
        position = self._position()
        self._participant.look(position)
        if self._participant.always_looks:
            try:
                backend().errors.check_preemption(None)
            except Exception as error:
                self.leave_for(error, arguments)
                raise
        plan = self.runtime.boundary(position)
        if plan is None:
            return
        if plan.kind is Kind.FINISHED and not plan.doomed:
            logger.error(
                "Another worker has ended its training after %s; this one goes on. Nothing can be agreed on any "
                "more, so a notice will NOT be answered. All workers must run the same program.",
                counted(position.batch, "run"),
            )
            self.abandon("another worker has ended its training")
        elif plan.goes_on:
            self._save_and_train_on(plan, position, arguments)
        else:
            self._save_and_leave(plan, position, arguments)

    def leave_for(self, error: BaseException, arguments: Arguments) -> None:
        """Saves and leaves, like `boundary`, if the error of a run says that a remote worker was preempted."""
        task = backend().errors.task_preempted_by(error)
        if self.over or task is None or not self._place.workers:
            return
        self.runtime.notices.append(notice_of(task))
        logger.warning("%s was preempted: saving now.", task)
        backend().errors.forget_asynchronous()  # Or the save raises the same error, after steps that do not wait.
        self._save_and_leave(_PREEMPTED, self._position(), arguments)

    def _position(self) -> Position:
        # Alike at the end: a worker whose program ends here has the state that the others have.
        runs = self._checkpoints.count.runs
        return Position(0, "train", runs, runs)

    def _save_and_train_on(self, plan: Plan, position: Position, arguments: Arguments) -> None:
        if plan.kind is Kind.PREEMPTED and self._answered.intersection(plan.doomed):
            # A further worker has got a notice, and what stands since the first save is counted down already. All
            # workers know the same plans, so that all come to this.
            logger.warning(
                "Another notice, after %s: the last save is still to come.", counted(position.batch, "run")
            )
        else:
            self._save_with_the_others(position, arguments)
        if plan.kind is Kind.PREEMPTED:
            self._answered = frozenset(plan.doomed)
        self.runtime.acted()
        left = self.runtime.trains_on_for
        if left is not None:
            logger.warning("Training goes on for about %.0f s, then comes the last save.", left)

    def _save_and_leave(self, plan: Plan, position: Position, arguments: Arguments) -> NoReturn:
        saved = self._save(position, arguments) is None
        if not saved:
            logger.error(
                "%s, and NOT saved after %s: %s is lost.",
                "Interrupted" if plan.kind is Kind.INTERRUPTED else "Preempted",
                counted(position.batch, "run"),
                self._at_risk(),
            )
        where = f"saved in {self._checkpoints.directory}" if saved else "NOT saved"
        what = f"its state after {counted(position.batch, 'run')} is {where}. Make a new handler to resume."
        self._participant.leave(plan, saved=self._saved_as if saved else None, what=what)

    def _save_with_the_others(self, position: Position, arguments: Arguments) -> bool:
        """Saves where this process goes on afterwards; returns whether that worked. One of several ends if not."""
        error = self._save(position, arguments)
        if error is not None and self._place.members > 1:
            # The others may wait in a collective for what this worker has not done.
            raised = self.settle(error)
            self.abandon("its save has failed")
            raise raised
        return error is None

    def _save(self, position: Position, arguments: Arguments) -> Exception | None:
        """Returns why that failed, if it did."""
        pace = self.runtime.pace
        pace.save_began()
        began = time.monotonic()
        try:
            with self._participant.heartbeat.during(Phase.SAVE):
                what = self._checkpoints.save(*arguments)
        except Exception as error:  # TensorFlow's, the file system's or save_fn's: the exit status tells.
            pace.saved(None)
            logger.exception("The state after %s was NOT saved.", counted(position.batch, "run"))
            return error
        seconds = time.monotonic() - began
        pace.saved(seconds)
        self._saved, self._saved_as = position.batch, what
        self._emit("commit", attempt=what, step=position.batch, seconds=seconds, missing=[])
        logger.warning("Saved %s, after %s.", what, counted(position.batch, "run"))
        return None

    def _last_saved(self) -> int | None:
        """The number of runs that the last save holds, whoever made it; None if there is none."""
        known = [runs for runs in (self._saved, self._checkpoints.count.written) if runs is not None]
        return max(known, default=None)

    def _at_risk(self) -> str:
        last = self._last_saved()
        return "everything that was trained" if last is None else f"what was trained since run {last}"

    # -- The end ----------------------------------------------------------------------------------------

    def finish(self, arguments: Arguments) -> bool:
        """The last boundary: all know that training is over. The state is saved if a notice stands.

        Returns whether the user has interrupted training meanwhile.
        """
        if self.over:
            return False
        self._participant.heartbeat.enter(Phase.END, self._checkpoints.count.runs)
        try:
            plan = self.runtime.finish(self._position())
            if plan is not None and plan.target > self.runtime.entered + 1:
                logger.error(
                    "Training ends here after %s, and goes on at another worker. All workers must run the same "
                    "program.",
                    counted(self._checkpoints.count.runs, "run"),
                )
            elif plan is not None and (plan.doomed or plan.kind is Kind.INTERRUPTED):
                if self._save_with_the_others(self._position(), arguments):
                    logger.warning("The notice came at the end of training: the finished state is saved.")
                else:
                    logger.error(
                        "The notice came at the end of training, and the finished state is NOT saved."
                    )
            self.runtime.leave()
            interrupted = self.runtime.interrupted or (plan is not None and plan.kind is Kind.INTERRUPTED)
        finally:
            self.abandon("training is over")
        return interrupted

    def settle(self, error: Exception) -> BaseException:
        """Broadcasts a local error; returns the error to raise."""
        if self._participant.propagation.origin is not None:
            return error  # It has passed through here before, on its way out.
        return self._participant.settle(error)

    def abandon(self, why: str) -> None:
        """Ends all that was started, and tells the others no more than that. Can be called twice."""
        self._ending.end(why)
