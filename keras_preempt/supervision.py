"""What watches over one fit, from its first hook to its last: begins it, saves it, ends it.

Everything that is started here is ended here: signal handlers, threads, the events file.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import sys
import time
from typing import Any, NoReturn

import keras

from keras_preempt import keras_internals, startup
from keras_preempt.alignment import Kind, Plan, Position
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.store import Store
from keras_preempt.coordination import Coordinator
from keras_preempt.coordination.local import LocalCoordinator
from keras_preempt.coordination.service import ServiceCoordinator
from keras_preempt.drill import Drill
from keras_preempt.events import EventLog
from keras_preempt.identity import describe
from keras_preempt.interval import Interval
from keras_preempt.listening import Listening
from keras_preempt.place import Place, place
from keras_preempt.runtime import Runtime
from keras_preempt.saves import Saves
from keras_preempt.saving import Saved, Saver
from keras_preempt.schedule import Schedule
from keras_preempt.session import Session
from keras_preempt.state import inputs
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.model import ModelState
from keras_preempt.status import Status
from keras_preempt.termination import EXIT_NOT_SAVED, Preempted, TerminationConfig

logger = logging.getLogger("keras_preempt")

_fits = 0
"""How many fits this process has begun. The workers of a job run one program, so it is the same on all."""

_live: dict[str, Supervision] = {}
"""The directories that a fit of this process is using."""


class Supervision:
    """One fit of one process.

    Args:
        store: The run's directory.
        termination: How notices arrive and how the job ends.
        schedule: When to save while nothing happens.
        max_to_keep: How many checkpoints stay.

    Attributes:
        runtime: Where the hot hooks count boundaries.
        session: What a save holds.
    """

    runtime: Runtime
    session: Session
    _saves: Saves

    def __init__(
        self, store: Store, termination: TerminationConfig, schedule: Schedule, max_to_keep: int
    ) -> None:
        self._store = store
        self._termination = termination
        self._schedule = schedule
        self._interval: Interval | None = None
        self._max_to_keep = max_to_keep
        self._place = Place()
        self._listening: Listening | None = None
        self._events: EventLog | None = None
        self._drill: Drill | None = None
        self._incarnation = 0
        self._status = Status()
        self._over = False

    # -- The beginning ------------------------------------------------------------------------------

    def begin(
        self, model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback
    ) -> None:
        """Takes over a fit in its on_train_begin; returns when the workers agree on how it begins."""
        try:
            self._begin(model, first, last)
        except BaseException as error:
            self._close(f"{type(error).__name__} at the start: {error}")
            raise

    def _begin(
        self, model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback
    ) -> None:
        global _fits
        began = time.time()
        strategy = model.distribute_strategy
        self._place = place(strategy)
        fit = keras_internals.running_fit(model)
        others = self._claim(fit.take_callbacks(first, last), first)
        _fits += 1
        coordinator: Coordinator = (
            LocalCoordinator()
            if self._place.members == 1
            else ServiceCoordinator(self._place.member, self._place.members)
        )
        self._events = EventLog(self._place.member)
        self.runtime = Runtime(coordinator, self._events, _fits)
        self._listening = Listening(self.runtime, coordinator, self._place, self._termination.signals)
        model_states: list[ModelState] = []

        def identity() -> dict[str, Any]:
            if self._place.members == 1 and strategy.num_replicas_in_sync == 1:
                keras_internals.build(model, fit.feed.element_spec)
            model_states.append(ModelState(model, strategy))
            return describe(model, model_states[0], fit, strategy, self._place.members)

        start = startup.begin(coordinator, _fits, self._store, self._store.prepare, identity)
        self._incarnation = start.incarnation
        self._events.open(
            start.incarnation,
            self._store.append_log(f"{EVENTS}/{start.incarnation:05d}.w{self._place.member:05d}.jsonl"),
        )
        self._events.emit("start", incarnation=start.incarnation, members=self._place.members)
        callbacks = CallbackStates(others)
        if callbacks.unsaved:
            logger.warning(
                "The state of these callbacks is not kept over a restart: %s. If they have any, give them "
                "get_state() and set_state(state).",
                ", ".join(callbacks.unsaved),
            )
        self.session = Session(model, fit, model_states[0], callbacks)
        saver = Saver(
            self._store,
            model_states[0],
            self._place.member,
            self._place.members,
            start.incarnation,
            self._max_to_keep,
            self._events,
        )
        self._saves = Saves(self.session, saver, self._schedule, start.incarnation, self._place.members)
        self.runtime.start(start.incarnation)
        self._drill = Drill.from_environment(self._place.member)
        self._promise(fit, coordinator)
        self._status.spent("startup", time.time() - began)
        if start.restored is not None:
            self._restore(start)
        self.runtime.attention = self.runtime.attention or self._drill is not None
        beginning = self.session.position(fit.initial_epoch, "epoch", 0)
        self._saves.begin(beginning)
        self._look_again(beginning)
        if self._schedule.seconds is not None and self._place.member == 0:
            self._interval = Interval(self._schedule.seconds, self.runtime.call_periodic)
        self._status.began_training()

    def _promise(self, fit: keras_internals.RunningFit, coordinator: Coordinator) -> None:
        if coordinator.member != 0:
            return
        exact, why = inputs.promise(fit.feed)
        if exact:
            logger.info(
                "Watching over %d worker(s) in %s. After a preemption: bit-identical; the input continues %s.",
                coordinator.members,
                self._store.url,
                why,
            )
        else:
            logger.warning("NOT exact after a preemption: %s.", why)

    def _claim(
        self, callbacks: list[keras.callbacks.Callback], first: keras.callbacks.Callback
    ) -> list[keras.callbacks.Callback]:
        rivals = [callback for callback in callbacks if isinstance(callback, type(first))]
        if rivals:
            raise ValueError(
                f"Expected one PreemptionCallback in a fit. Received: {len(rivals) + 1}. Remove all but one."
            )
        if _live.get(self._store.key, self) is not self:
            raise ValueError(
                f"Expected a directory that no other fit of this process is using. Received: "
                f"{self._store.url!r}, in which one is still running. Give each fit its own directory."
            )
        _live[self._store.key] = self
        return callbacks

    def _restore(self, start: startup.Start) -> None:
        assert start.restored is not None
        assert self._events is not None
        began = time.time()
        how = self.session.restore(start.restored, start.name)
        where = start.restored.manifest.position
        substituted = start.restored.substituted_from
        self._events.emit(
            "restore",
            checkpoint=start.name,
            seconds=time.time() - began,
            skipped=list(start.skipped),
            substituted_from=substituted,
            input=how,
        )
        self._status.spent("restore", time.time() - began)
        logger.info(
            "Continuing from %s: %s (the newest that verified%s). Input: %s.",
            start.name,
            Position(where["epoch"], where["phase"], where["batch"], where["step"]),
            f"; not used: {'; '.join(start.skipped)}" if start.skipped else "",
            how,
        )
        if substituted is not None:
            logger.warning(
                "NOT exact: worker %d was killed before it had written its own part of %s. Its metrics, "
                "BatchNormalization statistics, seeds, random state and callbacks are those of worker %d.",
                self._place.member,
                start.name,
                substituted,
            )

    # -- Boundaries ---------------------------------------------------------------------------------

    def boundary(self, epoch: int, phase: str, batch: int) -> None:
        """The slow way through a boundary; may not return.

        Raises:
            SystemExit: The checkpoint is saved and this process is to be started again.
            Preempted: The same, and the user's exit_fn has returned.
        """
        position = self.session.position(epoch, phase, batch)
        if self._drill is not None and self._drill.strike(position):
            self._drill = None
        plan = self.runtime.boundary(position)
        if plan is None:
            self._saves.scheduled(position)
            self.runtime.attention = self.runtime.attention or self._drill is not None
        elif plan.goes_on:
            self._status.spent("save", self._saves.in_background(plan, position))
            self.runtime.acted()
        else:
            self._leave(self._save(plan, position))
        self._look_again(position)

    def _look_again(self, position: Position) -> None:
        """Sets the boundary at which the schedule is looked at next."""
        self.runtime.due = self._saves.next_boundary(
            self.runtime.entered, position, self.session.steps_per_execution
        )

    def finish(self, epochs_done: int) -> None:
        """The last boundary: everyone knows that training is over, and the finished run is saved."""
        position = self.session.position(epochs_done, "end", 0)
        plan = self.runtime.finish(position)
        if plan is not None:
            saved = self._save(plan, position)
            self._status.committed = saved.name
            self._status.saved = saved.name is not None
        assert self._events is not None
        self._events.emit("finish", step=position.step)
        self.runtime.leave(finished=True)
        self._status.finished = True

    def _save(self, plan: Plan, position: Position) -> Saved:
        self._status.aligned_at = time.time()
        saved = self._saves.at_once(plan, position)
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

    def _leave(self, saved: Saved) -> NoReturn:
        assert self._events is not None
        code = self._termination.exit_code if saved.name is not None else EXIT_NOT_SAVED
        self._events.emit("exit", code=code, saved=saved.name)
        self._status.committed = saved.name
        self._status.saved = saved.name is not None
        self._status.exit_code = code
        began = time.time()
        self.runtime.leave(finished=False)
        self._status.spent("exit", time.time() - began)
        exit_fn = self._termination.exit_fn
        self._close("preempted")
        if exit_fn is not None:
            exit_fn()
            raise Preempted(
                f"The training was preempted; its checkpoint is {saved.name or 'NOT saved'}. Call fit again to "
                "resume."
            )
        logger.warning("Preempted: exiting with status %d.", code)
        sys.stdout.flush()
        # At its end the interpreter would look for garbage among all of TensorFlow's objects, for a second or
        # more of the grace period. Registered, not called: whoever catches SystemExit goes on as ever.
        atexit.register(gc.freeze)
        raise SystemExit(code)

    # -- The end ------------------------------------------------------------------------------------

    def end(self) -> None:
        """The fit has ended as fits do."""
        self._status.finished = True
        self._close("training is over")

    def abandon(self) -> None:
        """The fit was left by an exception, of which no hook is told."""
        self._close("its fit was left by an exception")

    def _close(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.ExitStack() as closing:  # The last line first, and every one of them.
            closing.callback(self._release_directory)
            if self._events is not None:
                closing.callback(self._events.close)
            if hasattr(self, "session"):
                closing.callback(self._write_status)
                closing.callback(self.session.end)
            if self._listening is not None:
                closing.callback(self._listening.stop)
            if hasattr(self, "runtime"):
                closing.callback(self.runtime.close, why)
            if hasattr(self, "_saves"):
                closing.callback(self._saves.end)
            if self._interval is not None:
                closing.callback(self._interval.stop)

    def _write_status(self) -> None:
        self._status.notices = [notice.received_at for notice in self.runtime.notices]
        self._status.spent("hold", self.runtime.hold_seconds)
        self._status.write(self._place.member, self._incarnation, self.session)

    def _release_directory(self) -> None:
        if _live.get(self._store.key) is self:
            del _live[self._store.key]
