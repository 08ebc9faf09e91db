"""One fit of one process: takes it from boundary to boundary, has it saved, and ends it.

`beginning.start` makes it, when the workers have agreed on how it begins. The hooks of Keras call it in pairs: the
callback of the user comes first among the callbacks of the fit, and a helper of ours last.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import keras

from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.keras.callbacks import ProgressBar
from keras_preempt.backend.keras.model_parts import steps_done
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, exits_with
from keras_preempt.process.heartbeat import Phase
from keras_preempt.process.words import numbered
from keras_preempt.report.events import Milestones
from keras_preempt.report.tensorboard import Points
from keras_preempt.state.callback_cure import cure
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.lost_state import missed_by
from keras_preempt.training.leave import leaving
from keras_preempt.training.run import several_fits
from keras_preempt.training.run.participant import Hook, Participant
from keras_preempt.training.save.resuming import ResumedFrom
from keras_preempt.training.save.saver import Saved
from keras_preempt.training.save.saves import Saves
from keras_preempt.training.save.session import Session

logger = logging.getLogger("keras_preempt")


@dataclass(eq=False)
class Fit:
    """One fit, ready for its first step, at `position`.

    Attributes:
        logs: The logs of the last step, as callbacks are given them.
        step_ended: Takes the number of a batch of this epoch whose step has ended.
        runtime: Where boundaries are counted.
    """

    model: keras.Model
    slot: several_fits.FitSlot
    participant: Participant
    session: Session
    saves: Saves
    milestones: Milestones
    points: Points
    bar: ProgressBar
    position: Position
    resumed: ResumedFrom | None

    def __post_init__(self) -> None:
        session = self.session
        self.logs: Mapping[str, Any] | None = session.restored_logs
        self.runtime = self.participant.runtime
        self.step_ended = session.steps.ended.append
        self._status = self.participant.status
        self._heartbeat = self.participant.heartbeat
        self._epoch = self.position.epoch
        self._epoch_entered = 0  # The number of the last boundary at which an epoch began, ...
        self._epoch_began = self._epoch_ended = self._test_began = 0.0  # ... and when that was left.
        self._interrupted = False  # By the plan under which the end is saved.
        self._snapshots = session.snapshot_taker()
        if self.resumed is not None:
            self.participant.explain = functools.partial(_explain, session.callbacks, self.participant.hook)
        self._schedule_look(self.position)

    # -- The hooks of fit. Those of a step add one and test a flag; nothing else while nothing happens. ----

    def epoch_begins(self, epoch: int) -> None:
        """The first one after a resume hands the other callbacks their state back."""
        self._epoch = epoch
        self.session.before_epoch()
        self.runtime.enter()
        phase = Phase.COMPILE if self.milestones.awaits_step else Phase.EPOCH
        self._heartbeat.enter(phase, self.session.steps.done, self.session.steps_per_execution)
        self._boundary("epoch", 0)

    def step_begins(self, batch: int) -> None:
        """Looks at a boundary that was counted, if the runtime or the schedule needs that.

        Not every backend sees an error that leaves this hook of ours, so it is settled here.
        """
        runtime = self.runtime
        with self.participant.settled():
            if self._epoch_entered != runtime.entered - 1:  # The first one of an epoch may take long.
                self._heartbeat.enter(Phase.TRAIN)
            if runtime.attention or runtime.entered >= self._due:
                self._boundary("train", batch)
            else:
                if runtime.entered >= self._snapshots.next_boundary():
                    self._take_snapshot()
                runtime.due = self._next_look()

    def validation_begins(self) -> None:
        if self.milestones.awaits_step:  # All steps of the epoch were one execution.
            self._passed(self.session.position(self._epoch, "validation", 0))
        self._snapshots.pauses()
        self.session.before_validation()
        self._mark(self.session.position(self._epoch, "validation", 0))
        self.runtime.enter()
        self._heartbeat.enter(Phase.VALIDATION_START, self.session.steps.done)
        if self.runtime.attention:
            self._boundary("validation", 0)
        self._test_began = time.monotonic()

    def validation_step_begins(self, batch: int) -> None:
        runtime = self.runtime
        if batch == 0:
            runtime.pace.paused(time.monotonic() - self._test_began)
        elif self._heartbeat.phase is Phase.VALIDATION_START:
            self._heartbeat.enter(Phase.VALIDATION)
        runtime.entered = runtime.count[0] = runtime.entered + 1
        if runtime.attention:
            self._boundary("validation", batch)

    def validation_ends(self) -> None:
        self.session.validation_ended()
        self._heartbeat.enter(Phase.EPOCH)

    def epoch_ends(self) -> None:
        """Comes before the other callbacks end the epoch: the time that they take is part of the grace period."""
        self._snapshots.pauses()
        self.session.epoch_ended()
        self._heartbeat.enter(Phase.EPOCH, self.session.steps.done)
        self._epoch_ended = time.monotonic()

    def epoch_has_ended(self, epoch: int) -> None:
        """Comes after the other callbacks have ended the epoch; if it was the last, training is over."""
        self.bar.ended()
        self.runtime.pace.paused(time.monotonic() - self._epoch_ended)
        if epoch + 1 >= self.session.epochs or self.model.stop_training:
            self._finish(epoch + 1)

    def training_ends(self) -> None:
        """Nothing left to train: cleans up."""
        self.session.nothing_to_train()
        if self.milestones.awaits_step:  # No step was left either.
            self.saves.after_start(True)
        # Other sources announce theirs again.
        several_fits.late_signals[:] = [each for each in self.runtime.notices if each.source == "signal"]
        self._status.finished = self.saves.saver.fenced is None
        self.participant.ending.end("training is over")

    def training_has_ended(self) -> None:
        """Comes after the other callbacks have ended training: the next fit is another one.

        Raises `Fenced` if the end is not saved, since a newer start of the job has the directory and trains on from
        there, and KeyboardInterrupt if the user pressed Ctrl-C when it was too late to leave before the end.
        """
        if (fenced := self.saves.saver.fenced) is not None:
            exits_with(fenced, EXIT_NOT_SAVED)
            raise fenced
        self.slot.ended(steps_done(self.model), self.session.size, self.session.callbacks.unsaved)
        if self._interrupted or self.runtime.interrupted:
            leaving.interrupt("training was over, and its end is saved.")

    # -- Boundaries --------------------------------------------------------------------------------------

    def _boundary(self, phase: str, batch: int) -> None:
        """Looks closer at a boundary that was just entered; may not return.

        Raises SystemExit when the checkpoint is saved and this process is to be started again, or Preempted, when the
        user's exit_fn has returned.
        """
        runtime = self.runtime
        position = self.session.arrive(self._epoch, phase, batch)
        self._passed(position)
        if self._epoch_entered and self._epoch_entered == runtime.entered - 1:
            runtime.pace.paused(time.monotonic() - self._epoch_began)
        self.participant.look(position, self.logs)
        plan = runtime.boundary(position)
        if plan is None:
            with self._heartbeat.during(Phase.SAVE):
                self.saves.scheduled(position)
            if phase == "train":
                self._take_snapshot()
            runtime.pace.leave(runtime.entered)
        elif plan.goes_on:
            self._save_and_train_on(plan, position)
        else:
            self._save_and_leave(plan, position)
        self._schedule_look(position)
        if phase == "epoch":
            self._mark(position)
            # Looks at its first batch as well: the countdown has to know how long an epoch takes to begin.
            self._due = runtime.due = runtime.entered + 1
            self._epoch_entered, self._epoch_began = runtime.entered, time.monotonic()

    def _mark(self, position: Position) -> None:
        """Remembers when the fit came here, so that a report can say how fast it went."""
        if position.step is not None:
            self.participant.events.mark(position.step)

    def _passed(self, position: Position) -> None:
        if self.milestones.passed(position):
            if not self.runtime.has_to_leave:  # Then it is all that is known of steps.
                self.runtime.pace.compiled()
            self.points.first_step(position.step or 0)
            self.saves.after_start(False)

    def _take_snapshot(self) -> None:
        """Takes a snapshot of the input if one is due; a notice may have to wait for that, and a save writes it."""
        if seconds := self._snapshots.boundary(self.runtime.entered):
            self.runtime.pace.snapshot_taken(seconds)
            self.runtime.pace.to_save = self.session.size + self._snapshots.held

    def _schedule_look(self, position: Position) -> None:
        """Sets the boundaries at which the schedule, and snapshots of the input, are looked at next."""
        runtime = self.runtime
        self._due = self.saves.next_boundary(runtime.entered, position, self.session.steps_per_execution)
        if self.milestones.awaits_step:
            self._due = runtime.entered + 1
        runtime.due = self._next_look()

    def _next_look(self) -> int:
        look = min(self._due, self._snapshots.next_boundary())
        return look if self._heartbeat.phase is Phase.TRAIN else min(look, self.runtime.entered + 1)

    def _save_and_train_on(self, plan: Plan, position: Position) -> None:
        with self._heartbeat.during(Phase.SAVE):
            self._status.spent("save", self.saves.in_background(plan, position))
        if plan.kind is Kind.PREEMPTED:
            self._call_save_fn()
        self.runtime.acted()
        left = self.runtime.trains_on_for
        if plan.kind is Kind.PREEMPTED and not self.runtime.ends_early:
            logger.warning(
                "First save, at %s: training goes on%s.",
                position,
                "" if left is None else f" for about {left:.0f} s, then comes the last save",
            )

    def _save_and_leave(self, plan: Plan, position: Position) -> NoReturn:
        saved = self._save(plan, position)
        self._heartbeat.enter(Phase.END)
        with leaving.whatever_happens("Calling save_fn"):
            self._call_save_fn()
        self._status.committed = saved.name
        if saved.name is None:
            self.saves.tell_what_is_lost(plan, position, uncertain=saved.uncertain)
        elif self.saves.memory is not None:
            self.saves.memory.remove()
        what = f"its checkpoint is {saved.name or 'NOT saved'}. Start again to continue from it."
        flush = functools.partial(self.session.callbacks.flush, self.runtime.left)
        self.participant.leave(plan, saved=saved.name, what=what, flush=flush)

    def _save(self, plan: Plan, position: Position, given_up: Callable[[], bool] = lambda: False) -> Saved:
        self._status.aligned_at = time.time()
        with self._heartbeat.during(Phase.SAVE):
            saved = self.saves.at_once(plan, position, given_up)
        self._status.spent("save", saved.seconds)
        self._status.committed_at = time.time()
        if saved.name is not None and plan.kind is not Kind.FINISHED:
            logger.warning("Saved %s: %s.", saved.name, position)
        if saved.missing:
            logger.warning(
                "Not written in time: the own part of %s. What is missing is named at the restore.",
                numbered("worker", saved.missing),
            )
        return saved

    def _call_save_fn(self) -> None:
        if (save_fn := self.participant.termination.save_fn) is None:
            return
        self.saves.wait()
        try:
            save_fn()
        except Exception:  # Whatever it is: the checkpoint is safe, and the machine goes anyway.
            logger.exception("save_fn has failed; the checkpoint of keras_preempt is not touched by that.")

    # -- The end -----------------------------------------------------------------------------------------

    def _finish(self, epochs_done: int) -> None:
        """The last boundary: everyone knows that training is over, and the finished run is saved."""
        self._heartbeat.enter(Phase.END, self.session.steps.done)
        position = self.session.arrive(epochs_done, "end", 0)
        if self.milestones.passed(position):
            self.saves.after_start(False)
        self.participant.hook.finish(position, self.logs)
        plan = self.runtime.finish(position)
        self._interrupted = plan is not None and plan.kind is Kind.INTERRUPTED
        propagation = self.participant.propagation
        saved = None if plan is None else self._save(plan, position, propagation.has_ended_elsewhere)
        if (saved is None or saved.name is None) and (failed := propagation.told()) is not None:
            raise failed
        if saved is not None:
            self._status.committed = saved.name
            self._status.saved = saved.name is not None
            if self.saves.memory is not None and saved.name is not None:
                self.saves.memory.remove()
        if self.saves.saver.fenced is None:
            self.participant.events.emit("finish", step=position.step)
        self.runtime.leave()
        self.points.finished(position.step or 0)
        self._status.finished = self.saves.saver.fenced is None

    def abandon(self) -> None:
        """The fit was left by an exception that was not seen on its way."""
        if not self.participant.ending.over:
            self.participant.propagation.left()
        self.participant.ending.end("its fit was left by an exception")


def _explain(callbacks: CallbackStates, hook: Hook, error: BaseException) -> None:
    """An error leaves a resumed fit: says so if it was raised in a callback whose state was not kept."""
    if missed := missed_by(error, callbacks.lost, callbacks.users):
        logger.error(
            "The error that ends this fit was raised in a callback whose state was not kept over the restart: %s. It "
            "may miss what it had before. %s.",
            ", ".join(missed),
            cure(missed),
        )
        hook.state_was_missed(missed)
