"""What watches over one fit, from its first hook to its last: begins it, saves it, ends it.

Everything that is started here is ended here: signal handlers, threads, the events file.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import keras
import tensorflow as tf

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend.keras import internals as keras_internals
from keras_preempt.backend.keras.progress_bar import ProgressBar
from keras_preempt.backend.keras.traced_step import stateful_random_operations, trace
from keras_preempt.backend.tensorflow.place import Place, place
from keras_preempt.backend.tensorflow.service import ServiceCoordinator
from keras_preempt.backend.tensorflow.worker_lost import says_a_loss
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.other_workers import load_for
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.notices.platform import GENERIC
from keras_preempt.notices.termination import EXIT_NOT_SAVED, TerminationConfig, complete
from keras_preempt.process import log
from keras_preempt.report.events import EventLog, log_name
from keras_preempt.report.milestones import Milestones
from keras_preempt.report.progress import transfer
from keras_preempt.report.status import Status
from keras_preempt.report.tensorboard import Points
from keras_preempt.state import architecture, input_promise
from keras_preempt.state.callbacks import CallbackStates, refuse_rivals
from keras_preempt.state.description import describe, setup_of
from keras_preempt.state.model import ModelState
from keras_preempt.training import (
    leaving,
    live_fits,
    several_fits,
    shared_files,
    side_by_side,
    space,
    startup,
)
from keras_preempt.training.listening import Listening
from keras_preempt.training.peers import Peers
from keras_preempt.training.promise import Promise, promise
from keras_preempt.training.propagation import Propagation, gist
from keras_preempt.training.rehearsal import Rehearsal
from keras_preempt.training.restoring import restore
from keras_preempt.training.runtime import Runtime
from keras_preempt.training.saver import Saved, Saver
from keras_preempt.training.saves import Saves
from keras_preempt.training.schedule import Schedule
from keras_preempt.training.session import Session
from keras_preempt.training.start_errors import AGREEING, DESCRIBING, LOOKING, RESTORING, explain
from keras_preempt.training.timers import Interval

logger = logging.getLogger("keras_preempt")

_fits = 0
"""How many fits this process has begun. The workers of a job run one program, so it is the same on all."""


class Supervision:
    """One fit of one process.

    Args:
        turn: Which fit of the process it is, and its place in the run's directory.
        termination: How notices arrive and how the job ends.
        schedule: When to save while nothing happens.
        retention: Which checkpoints stay.

    Attributes:
        bar: Keras' progress bar, beside which log lines are written.
        runtime: Where the hot hooks count boundaries.
        session: What a save holds.
    """

    runtime: Runtime
    session: Session
    _saves: Saves

    def __init__(
        self,
        turn: several_fits.Turn,
        termination: TerminationConfig,
        schedule: Schedule,
        retention: Retention,
    ) -> None:
        self._turn = turn
        self._store = turn.store
        self._config = termination
        self._termination = complete(termination, GENERIC)  # Until it is known where this is.
        self._schedule = schedule
        self._interval: Interval | None = None
        self._retention = retention
        self._place = Place()
        self._listening: Listening | None = None
        self._events: EventLog | None = None
        self._milestones: Milestones | None = None
        self._rehearsal: Rehearsal | None = None
        self._points = Points((), "", 0, None)  # Those of the chief: see below.
        self._incarnation = 0
        self._status = Status()
        # The number of the boundary, and when it was left.
        self._epoch_began: tuple[int, float] | None = None
        self._over = False
        self._stage = LOOKING
        self.bar = ProgressBar(())
        self._propagation = Propagation(LocalCoordinator())
        self._unguard: Callable[[], None] = _nothing

    # -- The beginning ------------------------------------------------------------------------------

    def begin(
        self, model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback
    ) -> None:
        """Takes over a fit in its on_train_begin; returns when the workers agree on how it begins."""
        try:
            self._begin(model, first, last)
        except BaseException as error:
            # Before the session is there, the workers tell each other of errors in `startup`.
            told_here = hasattr(self, "session") or says_a_loss(error, self._place.workers)
            raised = self._settle(error) if told_here else error
            explain(raised, self._stage)
            self._close(f"{type(error).__name__} at the start: {error}")
            if raised is not error:
                raise raised from error
            raise

    def _begin(
        self, model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback
    ) -> None:
        global _fits
        began = time.time()
        self.set_deadline(None)  # The store may have served a fit before, under a notice of that time.
        strategy = model.distribute_strategy
        self._place = place(strategy)
        alone = side_by_side.alone(strategy, self._place)
        fit = keras_internals.running_fit(model)
        self._unguard = fit.guard(self._settle)
        others = self._claim(fit.take_callbacks(first, last), first)
        refuse_rivals(others)
        self.bar = ProgressBar(others)
        log.watch_bar(self.bar.drawn_at)
        _fits += 1
        coordinator: Coordinator = (
            LocalCoordinator()
            if self._place.members == 1
            else ServiceCoordinator(self._place.member, self._place.members, self._place.jobs)
        )
        self._propagation = Propagation(coordinator, remote=self._place.workers)
        self._events = EventLog(self._place.member)
        self._milestones = milestones = Milestones(self._events)
        self.runtime = Runtime(
            coordinator, self._events, _fits, self._termination.grace_period, self.set_deadline
        )
        self._listening = Listening(self.runtime, coordinator, self._place, self._config)
        model_states: list[ModelState] = []
        setup = setup_of(model, fit.feed, strategy, self._place.members)

        def identity() -> dict[str, Any]:
            self._stage = DESCRIBING
            fit.traced = trace(model, fit.feed.dataset)
            changed = [] if fit.traced is None else fit.traced.changed_variables
            complete = fit.traced is not None
            model_states.append(ModelState(model, strategy, complete=complete, changed=changed))
            described = describe(model, model_states[0], fit, setup, self._turn.begun_after)
            self._stage = AGREEING
            return described

        def prepare() -> None:
            self._store.prepare()
            replicas = strategy.num_replicas_in_sync // self._place.members
            space.check(self._store, model_states[0], self._place.members, replicas)

        def read(store: Store, info: CheckpointInfo, member: int, members: int) -> Loaded:
            reading = time.time()
            try:
                return load_for(store, info, member, setup, transfer)
            finally:
                milestones.read(reading)

        def claimed(incarnation: int) -> None:
            if alone is not None:
                alone.refuse_company(self._store, incarnation)
                alone.warn()

        settings = {"retention": self._retention.to_json(), **({} if alone is None else alone.claim())}
        start = startup.begin(
            coordinator,
            _fits,
            self._store,
            prepare,
            identity,
            read,
            settings,
            claimed,
            beside=self._turn.beside,
            tells=shared_files.written_by(others),
            told=shared_files.warn,
        )
        done = 0 if start.restored is None else int(start.restored.manifest.position["epoch"])
        had_ended = start.restored is not None and start.restored.manifest.finished
        stopped = start.restored is not None and bool(start.restored.state.get("stopped"))
        over = had_ended and (done >= fit.epochs or stopped)
        if had_ended and not over:
            self._turn.refuse_longer(done, fit.epochs)
        self._incarnation = start.incarnation
        self._stage = LOOKING
        described = architecture.describe(model)
        if self._place.member == 0:
            architecture.keep(self._store, start.incarnation, described)
        self._events.open(
            start.incarnation,
            self._store.append_log(log_name(start.incarnation, self._place.member)),
        )
        milestones.started(start.incarnation, self._place.members)
        self._status.begin(self._place.member, start.incarnation, self._store.key)
        callbacks = CallbackStates(others)
        if start.restored is None and start.incarnation > 1:
            callbacks.begin_again_without_state()
        if self._place.member == 0:
            restored = None if start.restored is None else start.restored.manifest.step
            self._points = Points(others, self._store.key, start.incarnation, restored)
        self.session = Session(model, fit, model_states[0], callbacks, setup, self._place.member)
        saver = Saver(
            self._store,
            model_states[0],
            self._place.member,
            self._place.members,
            start.incarnation,
            self._retention,
            self._events,
            self._points.saved,
            Peers(coordinator),
            self.runtime.patience,
        )
        self._saves = Saves(
            self.session, saver, self._schedule, start.incarnation, self._place.members, self.runtime.pace
        )
        for notice in several_fits.take_notices():
            self.runtime.notify(notice)
        self.runtime.start()
        self._termination = self._listening.hear_platform()
        before = "" if over or self._place.member != 0 else self._turn.trains()
        if not over:
            self._promise(fit, coordinator, callbacks, model_states[0])
        self._status.spent("startup", time.time() - began)
        if start.restored is not None:
            self._stage = RESTORING
            seconds = restore(self.session, start, self._place.member, self._events, None if over else before)
            self._status.spent("restore", seconds)
            if over and self._place.member == 0:
                self._turn.had_ended(fit.epochs)
        elif before:
            logger.info("%s", before.rstrip())
        self._stage = LOOKING
        self._rehearsal = Rehearsal.from_environment(
            self._place.member,
            model_states[0],
            fit,
            self.session,
            self._saves,
            callbacks,
            self.runtime,
            self._store.key,
            lambda: self._promised(fit, model_states[0], ()),
        )
        if self._rehearsal.needs_every_boundary:
            self.runtime.every_boundary = self.runtime.attention = True
        beginning = self.session.position(fit.initial_epoch, "epoch", 0)
        milestones.ready(beginning, fit.epochs)
        self._saves.begin(beginning)
        self.runtime.at_risk = self._saves.at_risk
        self.runtime.pace.to_save = space.size_of(model_states[0].signature())
        self.runtime.pace.leave(self.runtime.entered)
        self._look_again(beginning)
        if self._schedule.seconds is not None and self._place.member == 0:
            self._interval = Interval(self._schedule.seconds, self.runtime.call_periodic)
        self._status.began_training()

    def _promise(
        self,
        fit: keras_internals.RunningFit,
        coordinator: Coordinator,
        callbacks: CallbackStates,
        model_state: ModelState,
    ) -> None:
        if coordinator.member != 0:
            return
        promised = self._promised(fit, model_state, callbacks.unsaved)
        if not self._turn.is_news("promise", str(promised)):
            return
        logger.log(
            logging.WARNING if promised.doubts else logging.INFO,
            "Watching over %d %s in %s. %s",
            len(self._place.workers) or coordinator.members,
            "remote worker(s)" if self._place.workers else "worker(s)",
            self._store.url,
            promised,
        )

    def _promised(
        self, fit: keras_internals.RunningFit, model_state: ModelState, unsaved: Sequence[str]
    ) -> Promise:
        traced = fit.traced
        return promise(
            input_promise.promise(fit.feed, fit.validation_data),
            self.session.shuffles,
            None if traced is None else stateful_random_operations(traced),
            model_state.holds,
            unsaved,
        )

    def _claim(
        self, callbacks: list[keras.callbacks.Callback], first: keras.callbacks.Callback
    ) -> list[keras.callbacks.Callback]:
        rivals = [callback for callback in callbacks if isinstance(callback, type(first))]
        if rivals:
            raise ValueError(
                f"Expected one PreemptionCallback in a fit. Received: {len(rivals) + 1}. Remove all but one."
            )
        live_fits.claim(self._store, self)
        return callbacks

    # -- Boundaries ---------------------------------------------------------------------------------

    def boundary(self, epoch: int, phase: str, batch: int) -> None:
        """The slow way through a boundary; may not return.

        Raises:
            SystemExit: The checkpoint is saved and this process is to be started again.
            Preempted: The same, and the user's exit_fn has returned.
        """
        position = self.session.position(epoch, phase, batch)
        self._passed(position)
        assert self._listening is not None
        self._listening.look_again()
        self.session.check_handed_over()
        if self._epoch_began is not None and self._epoch_began[0] == self.runtime.entered - 1:
            self.runtime.pace.paused(time.monotonic() - self._epoch_began[1])
        if self._rehearsal is not None and self.runtime.every_boundary:
            self._rehearsal.boundary(position)
            self.runtime.every_boundary = self._rehearsal.needs_every_boundary
        plan = self.runtime.boundary(position)
        if plan is None:
            self._saves.scheduled(position)
            self.runtime.pace.leave(self.runtime.entered)
        elif plan.goes_on:
            self._status.spent("save", self._saves.in_background(plan, position))
            if plan.kind is Kind.PREEMPTED:
                self._call_save_fn()
            self.runtime.acted()
            left = self.runtime.trains_on_for
            if plan.kind is Kind.PREEMPTED:
                logger.warning(
                    "First save, at %s: training goes on%s.",
                    position,
                    "" if left is None else f" for about {left:.0f} s, then comes the last save",
                )
        else:
            saved = self._save(plan, position)
            with leaving.whatever_happens("Calling save_fn"):
                self._call_save_fn()
            self._leave(saved, position)
        self._look_again(position)
        if phase == "epoch":
            # Looks at its first batch as well: the countdown has to know how long an epoch takes to begin.
            self.runtime.due = self.runtime.entered + 1
            self._epoch_began = (self.runtime.entered, time.monotonic())

    def before_validation(self, epoch: int) -> None:
        """A validation is about to begin, its boundary not entered yet."""
        assert self._milestones is not None
        if self._milestones.awaits_step:  # All steps of the epoch were one execution.
            self._passed(self.session.position(epoch, "validation", 0))
        self.session.before_validation()

    def _passed(self, position: Position) -> None:
        assert self._milestones is not None
        if self._milestones.passed(position):
            self._points.first_step(position.step or 0)

    def _look_again(self, position: Position) -> None:
        """Sets the boundary at which the schedule is looked at next."""
        self.runtime.due = self._saves.next_boundary(
            self.runtime.entered, position, self.session.steps_per_execution
        )
        assert self._milestones is not None
        if self._milestones.awaits_step:
            self.runtime.due = self.runtime.entered + 1

    def finish(self, epochs_done: int) -> None:
        """The last boundary: everyone knows that training is over, and the finished run is saved."""
        position = self.session.position(epochs_done, "end", 0)
        assert self._milestones is not None
        self._milestones.passed(position)
        self.session.check_handed_over()
        if self._rehearsal is not None:
            self._rehearsal.finish(position)
        plan = self.runtime.finish(position)
        saved = None if plan is None else self._save(plan, position, self._propagation.has_ended_elsewhere)
        if (saved is None or saved.name is None) and (failed := self._propagation.told()) is not None:
            raise failed
        if saved is not None:
            self._status.committed = saved.name
            self._status.saved = saved.name is not None
        assert self._events is not None
        self._events.emit("finish", step=position.step)
        self.runtime.leave()
        self._points.finished(position.step or 0)
        self._status.finished = True

    def set_deadline(self, deadline: float | None) -> None:
        """Cuts every call to the storage so that it is over by then; monotonic seconds, None for no limit."""
        self._store.deadline = deadline

    def _save(self, plan: Plan, position: Position, given_up: Callable[[], bool] = lambda: False) -> Saved:
        self._status.aligned_at = time.time()
        saved = self._saves.at_once(plan, position, given_up)
        self._status.spent("save", saved.seconds)
        self._status.committed_at = time.time()
        if saved.name is not None and plan.kind is not Kind.FINISHED:
            logger.warning("Saved %s: %s.", saved.name, position)
        if saved.missing:
            logger.warning(
                "Worker(s) %s did not write their own part in time; what is missing is named at the restore.",
                ", ".join(map(str, saved.missing)),
            )
        return saved

    def _call_save_fn(self) -> None:
        if self._termination.save_fn is not None:
            self._saves.wait()
            leaving.call_save_fn(self._termination)

    def _leave(self, saved: Saved, position: Position) -> NoReturn:
        assert self._events is not None
        code = self._termination.exit_code if saved.name is not None else EXIT_NOT_SAVED
        with leaving.whatever_happens("Telling how this process ends"):
            self._events.emit("exit", code=code, saved=saved.name)
        with leaving.whatever_happens("A callback that writes what it holds back"):
            self.session.leave()
        self._status.committed = saved.name
        self._status.saved = saved.name is not None
        self._status.exit_code = code
        began = time.monotonic()
        with leaving.whatever_happens("Leaving the other workers"):
            self.runtime.leave()
        self._status.spent("exit", time.monotonic() - began)
        if saved.name is None:
            self._saves.tell_loss(position, uncertain=saved.uncertain)
        assert self._listening is not None
        self._listening.leave_with(self._termination, code)
        with leaving.whatever_happens("Ending what was started for the fit"):
            self._close("preempted")
        with leaving.whatever_happens("Waiting for the workers"):
            leaving.wait_for_workers(self._termination, self._place, self.runtime.notices)
        what = f"its checkpoint is {saved.name or 'NOT saved'}. Call fit again to resume."
        leaving.leave(self._termination, code, what)

    # -- The end ------------------------------------------------------------------------------------

    def end(self) -> None:
        """The fit has ended as fits do."""
        several_fits.leave_notices(self.runtime.notices)
        self._status.finished = True
        self._close("training is over")

    def _settle(self, error: BaseException) -> BaseException:
        """An error is on its way out of the fit; returns the one to raise."""
        if self._over:  # Such as the exit after a preemption.
            return error
        raised = self._propagation.settle(error)
        assert self._propagation.origin is not None
        what = f"{type(raised).__name__}: {gist(str(raised))}"
        if self._events is not None:
            self._events.emit("error", reason=what, origin=self._propagation.origin.value)
        self._close(what)
        return raised

    def abandon(self) -> None:
        """The fit was left by an exception that was not seen on its way."""
        if not self._over:
            self._propagation.left()
        self._close("its fit was left by an exception")

    def _close(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.ExitStack() as closing:  # The last line first, and every one of them.
            closing.callback(live_fits.release, self._store, self)
            closing.callback(log.watch_bar, None)
            closing.callback(self._close_store)
            if self._events is not None:
                closing.callback(self._events.close)
            if self._milestones is not None:
                closing.callback(self._milestones.end, why, self._steps_done)
            if hasattr(self, "session"):
                closing.callback(self._write_status)
                closing.callback(self.session.end)
            if self._listening is not None:
                closing.callback(self._listening.stop)
            if hasattr(self, "runtime"):
                closing.callback(self.runtime.close, why)
            closing.callback(self._points.close)
            if hasattr(self, "_saves"):
                closing.callback(self._saves.end)
            if self._interval is not None:
                closing.callback(self._interval.stop)
            if self._rehearsal is not None:
                closing.callback(self._rehearsal.close)
            closing.callback(self._unguard)

    def _steps_done(self) -> int | None:
        # The counter may lie on a remote worker, which may be gone: asking it could take for ever.
        if not hasattr(self, "session") or self._place.workers:
            return None
        try:
            return self.session.steps_at_start + self.session.steps_run
        except tf.errors.OpError:  # What has ended training has also left no counter to read.
            return None

    def _write_status(self) -> None:
        if hasattr(self, "_saves"):
            self._status.last_saved = self._saves.safe_step
        self._status.notices = [notice.received_at for notice in self.runtime.notices]
        self._status.spent("hold", self.runtime.hold_seconds)
        self._status.write(self._place.member, self._incarnation, self.session)

    def _close_store(self) -> None:
        try:
            self._store.close()
        except StoreUnavailable as error:  # Nothing but events: no reason to hide how the fit has ended.
            logger.warning("The last events could not be stored: %s", error)


def _nothing() -> None:
    """There is no guard to end."""
