"""The beginning of a fit: the workers agree on a checkpoint, resume from it, and are ready for the first step."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Iterator
from typing import Any

import keras

from keras_preempt.backend.keras.callbacks import ProgressBar
from keras_preempt.backend.keras.running_fit import builds_before_evaluating
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.exchange import give_all
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.in_memory import InMemory
from keras_preempt.checkpoint.reader import Loaded, Reading
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.process import log
from keras_preempt.process.words import counted
from keras_preempt.report.events import Milestones, log_name
from keras_preempt.report.progress import transfer
from keras_preempt.report.tensorboard import Points
from keras_preempt.state import architecture, py_dataset
from keras_preempt.state.callback_code import BEFORE_FIRST_STEP, WHILE_TRAINING, HookCode, may_be_trainable
from keras_preempt.state.callbacks import CallbackStates, refuse_rivals
from keras_preempt.state.component import checked
from keras_preempt.state.description import identity_of_run
from keras_preempt.state.model import ModelState
from keras_preempt.training.leave.start_errors import (
    AGREEING,
    DESCRIBING,
    LOOKING,
    RESTORING,
    Reached,
    explained,
)
from keras_preempt.training.run.fit import Fit
from keras_preempt.training.run.participant import Ending, Participant
from keras_preempt.training.run.several_fits import FitSlot, ended_fits, is_news, late_signals
from keras_preempt.training.save import requests
from keras_preempt.training.save.resuming import Start, resumed_from
from keras_preempt.training.save.saver import Saver
from keras_preempt.training.save.saves import Saves
from keras_preempt.training.save.schedule import Interval
from keras_preempt.training.save.session import Session
from keras_preempt.training.save.space import check_space
from keras_preempt.training.save.tidier import Tidier
from keras_preempt.training.start import shared_files, side_by_side
from keras_preempt.training.start.handshake import START_TIMEOUT, Handshake
from keras_preempt.training.start.memory_start import MemoryStart
from keras_preempt.training.start.options import Options
from keras_preempt.training.start.reading_ahead import reading_ahead
from keras_preempt.training.start.reading_together import Share
from keras_preempt.training.start.startup import Startup

logger = logging.getLogger("keras_preempt")

_INPUT = "input"
"""Vote: how to restore the input position."""

_fits = 0
"""How many fits this process has begun. The workers of a job run one program, so it is the same on all."""


def start(
    model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback, options: Options
) -> Fit:
    """Begins a fit, in its on_train_begin; returns when the workers agree on how it begins.

    `first` is ours among the callbacks of the fit and becomes the first; `last` is made the last. Only the fit's own
    list of callbacks may hold it: when that goes, the fit has been left.

    Raises ValueError if the fit cannot be preempted as it is called, CheckpointError if the directory or each of its
    checkpoints cannot be used, StartError if another worker had an error or did not appear, and what the model raises
    where it is traced.
    """
    began = time.time()
    slot = FitSlot(options.store, options.staging_dir)
    ending = Ending()
    with ending.on_error(), explained(LOOKING) as reached:
        beginning = _Beginning(model, first, last, options, slot, ending, reached)
        participant = beginning.participant
        # Until they have agreed, the workers tell each other of errors in `startup`; the others may have agreed when
        # this one is interrupted.
        with participant.settled(
            lambda error: (
                not isinstance(error, Exception)
                or backend().errors.says_a_loss(error, participant.place.workers)
            )
        ):
            agreed = beginning.choose_checkpoint()
        with participant.settled():
            fit = beginning.resume(agreed, began)
        # Cleans up even if fit raises: Keras calls no hook then.
        left = weakref.finalize(last, fit.abandon)
        ending.add(left.detach)
    return fit


class _Beginning(Startup):
    """A fit until its first step: looked at here, then `choose_checkpoint`, then `resume`.

    What is left to the ending of the fit must not hold this, as this holds much that the fit does not need.
    """

    def __init__(
        self,
        model: keras.Model,
        first: keras.callbacks.Callback,
        last: keras.callbacks.Callback,
        options: Options,
        slot: FitSlot,
        ending: Ending,
        reached: Reached,
    ) -> None:
        """Looks at what the fit is called with, and gets ready to talk to the other workers."""
        global _fits
        store = slot.store
        store.deadline = None  # It may have served a fit before, under a notice of that time.
        ending.add(lambda: log.watch_bar(None))
        ending.add(slot.close)
        strategy = backend().strategy_of(model)
        here = backend().place(strategy)
        running = backend().running_fit(model)
        ending.add(running.guard(lambda error: participant.end_by(error)))
        others = running.take_callbacks(first, last)
        if rivals := [callback for callback in others if isinstance(callback, type(first))]:
            raise ValueError(
                f"Expected one PreemptionCallback in a fit. Received: {len(rivals) + 1}. Remove all but one."
            )
        slot.claim()
        refuse_rivals(others)
        bar = ProgressBar(others)
        log.watch_bar(bar.drawn_at)
        _fits += 1

        def machine_goes(at: float | None) -> None:
            store.deadline = at  # Cuts every call to the storage so that it is over by then.

        coordinator = backend().coordinator(here)
        participant = Participant(
            here, coordinator, options.termination, _fits, ending, machine_goes, options.on_event
        )
        super().__init__(store, Handshake(coordinator, participant.number))
        self.model, self.running, self.others, self.bar = model, running, others, bar
        self.slot, self.options, self.reached, self.participant = slot, options, reached, participant
        self.milestones = Milestones(participant.events)
        self.strategy, self.replicas = strategy, backend().replicas(strategy)
        self.setup = Setup(
            workers=here.members,
            replicas=self.replicas,
            global_batch=running.feed.global_batch,
            batches=running.feed.batches,
            built_from=int(builds_before_evaluating(model)),
            layout=backend().layout(strategy),
        )
        self.memory = MemoryStart(options.memory, here)
        self.over = False  # Whether the fit had ended, so that there is nothing to train.

    # -- The workers agree on the checkpoint to continue from ------------------------------------------

    def choose_checkpoint(self) -> Start:
        """Builds the model if need be, and agrees with the other workers on the checkpoint to continue from."""
        here, slot = self.participant.place, self.slot
        self.alone = side_by_side.alone(self.strategy, here)
        self.gather = backend().gather(here, START_TIMEOUT) if here.members > 1 else None
        self.settings = {
            "retention": self.options.retention.to_json(),
            **({} if self.alone is None else self.alone.claim()),
        }
        self.tells = self.options.together and self.gather is not None
        self.together = self.tells and backend().reads_together
        self.beside, self.facts = slot.beside, shared_files.written_by(self.others)
        # What is in memory is read from there.
        with contextlib.nullcontext() if self.memory.holds_any else reading_ahead(self.store, here.members):
            start = self.agree()
        if start.restored is not None and start.restored.manifest.finished:
            done = int(start.restored.manifest.position["epoch"])
            self.over = done >= self.running.epochs or bool(start.restored.state.get("stopped"))
            if not self.over:
                slot.refuse_longer(done, self.running.epochs)
        self.reached.stage = LOOKING
        description = architecture.describe(self.model)
        if here.member == 0:
            architecture.keep(self.store, start.incarnation, description)
        return start

    def identity(self) -> dict[str, Any]:
        self.reached.stage = DESCRIBING
        running, others = self.running, self.others
        read = [HookCode(each, BEFORE_FIRST_STEP) for each in others]
        outdated = {found for each in read for found in each.set_outside(variables=True)}
        # No worker may trace more often than the others; and an optimizer is built for what is trainable.
        alone = self.participant.place.members == 1
        early = not outdated or (alone and not may_be_trainable(outdated))
        running.traced = backend().trace(self.model, running.feed.dataset, early=early, again=bool(outdated))
        traced = running.traced
        assigned = any(HookCode(each, WHILE_TRAINING).may_change_weights for each in others)
        used = () if traced is None else traced.variables if assigned else traced.changed_variables
        self.model_state = ModelState(self.model, self.strategy, complete=traced is not None, used=used)
        compared = identity_of_run(self.model, self.model_state, running, self.setup, self.slot.begun_after)
        self.reached.stage = AGREEING
        return compared

    def prepare(self) -> None:
        self.store.prepare()
        members = self.participant.place.members
        check_space(self.store, self.model_state, members, self.replicas // members)

    def hold(self, run_id: str) -> list[str]:
        return self.memory.hold(run_id)

    def claimed(self, incarnation: int) -> None:
        if self.alone is not None:
            self.alone.refuse_company(self.store, incarnation)
            self.alone.warn()

    def compare(self, facts: Any) -> None:
        shared_files.warn(facts)

    def read(self, info: CheckpointInfo) -> Loaded:
        member = self.participant.place.member
        with self.milestones.reading():
            store = self.memory.store_of(info, self.store)
            reading = Reading(store, info, transfer, wanted=self.model_state.needed())
            return checked(info, reading.load(member, self.setup), member)

    def read_share(self, info: CheckpointInfo) -> Share:
        assert self.gather is not None
        here = self.participant.place
        with self.milestones.reading():
            wanted = self.model_state.needed()
            givers = info.givers if isinstance(info, InMemory) else None
            share = here.member, here.members
            reading = Reading(self.memory.store_of(info, self.store), info, transfer, share, wanted, givers)
            loaded = checked(info, reading.load(here.member, self.setup), here.member)
            return Share(loaded, reading, self.gather, self._exchanging)

    def give(self, data: bytes) -> list[bytes]:
        assert self.gather is not None
        here = self.participant.place
        with self._exchanging():
            return give_all(self.gather, here.members, here.member, data)

    def meet(self, number: int, info: InMemory) -> str | None:
        return self.memory.meet(self.handshake, number, info, self.gather, self._exchanging)

    @contextlib.contextmanager
    def _exchanging(self) -> Iterator[None]:
        # The others are in the exchange as well, and wait for this worker. A file that arrived damaged is told later.
        with (
            self.milestones.reading(),
            self.participant.settled(lambda error: not isinstance(error, CheckpointError)),
        ):
            yield

    # -- It resumes ----------------------------------------------------------------------------------------

    def resume(self, start: Start, began: float) -> Fit:
        """Makes the fit, takes over the checkpoint, and takes part in rounds from now on."""
        participant, running = self.participant, self.running
        milestones, options = self.milestones, self.options
        runtime, status, ending = participant.runtime, participant.status, participant.ending
        store, here = self.store, participant.place
        chief = here.member == 0
        callbacks = CallbackStates(self.others, self.model_state.holder(), self.model_state.mirrored_weights)
        if start.restored is None and start.incarnation > 1:
            callbacks.begin_again_without_state()
        session = Session(
            self.model, running, self.model_state, callbacks, self.setup, here.member, options.input_state
        )
        ending.add(lambda: milestones.end(ending.why, lambda: session.steps.done))
        ending.add(session.end)
        participant.events.open(start.incarnation, store.append_log(log_name(start.incarnation, here.member)))
        milestones.started(start.incarnation, here.members, backend().versions())
        status.begin(here.member, start.incarnation, store.key)
        restored_step = None if start.restored is None else start.restored.manifest.step
        participant.heartbeat.saved(restored_step or 0)
        points = Points(self.others if chief else (), store.key, start.incarnation, restored_step)
        ending.add(points.close)
        saves = self._saves(start, session, points)
        if not self.over:
            saves.memory = self.memory.saves(participant, session, self.model_state, start.incarnation)
        incarnation = start.incarnation
        ending.add(lambda: participant.write_status(incarnation, saves.safe_step, session))
        ending.add(saves.end)
        while late_signals:
            runtime.notify(late_signals.pop(0))
        participant.start()
        before = ""  # What to say in front of the line that tells from where.
        if chief and not self.over:
            before = self.slot.trains()
            self._say_promise(session)
        status.spent("startup", time.time() - began)
        if start.restored is not None:
            self.reached.stage = RESTORING
            with self.handshake.telling_of(_INPUT):
                seconds = session.restore(
                    start,
                    participant.events,
                    lambda way: self.handshake.is_shared(_INPUT, way),
                    None if self.over else before,
                )
            status.spent("restore", seconds)
            if self.over and chief:
                ended_fits.had_ended(self.slot.url, running.epochs)
        elif before:
            logger.info("%s", before.rstrip())
        self.reached.stage = LOOKING
        participant.set_hook(options.hook(here.member, store.key, session, saves, runtime))
        ending.add(participant.hook.close)
        position = session.position(running.initial_epoch, "epoch", 0)
        milestones.ready(position, running.epochs, options.schedule.ahead(session.steps_per_execution))
        saves.begin(position)
        runtime.at_risk = saves.at_risk
        runtime.pace.to_save = session.size
        runtime.pace.leave(runtime.entered)
        fit = Fit(
            model=self.model,
            slot=self.slot,
            participant=participant,
            session=session,
            saves=saves,
            milestones=milestones,
            points=points,
            bar=self.bar,
            position=position,
            resumed=resumed_from(start),
        )
        if chief and options.schedule.seconds is not None:
            ending.add(Interval(options.schedule.seconds, runtime.call_periodic).stop)
        if chief and options.look is not None and not self.over:
            answers = requests.Requests(
                store,
                start.incarnation,
                options.look,
                runtime.call_requested,
                lambda: runtime.has_to_leave,
                participant.events.emit,
            )
            saves.on_capture, saves.on_saved = answers.captured, answers.saved
            ending.add(lambda: answers.stop(ending.why))
        status.began_training()
        return fit

    def _saves(self, start: Start, session: Session, points: Points) -> Saves:
        participant, store, here = self.participant, self.store, self.participant.place
        runtime = participant.runtime
        tidier = Tidier(store, self.options.retention, start.incarnation, lambda: runtime.has_to_leave)
        participant.ending.add(tidier.stop)
        saver = Saver(
            store,
            self.model_state,
            start.incarnation,
            tidier,
            participant.events,
            participant.coordinator,
            runtime.patience,
        )
        beat = participant.heartbeat

        def committed(step: int, seconds: float) -> None:
            beat.saved(step)
            points.saved(step, seconds)

        saver.on_commit = committed
        saves = Saves(session, saver, self.options.schedule, here.members, runtime.pace)
        if here.member == 0 and start.incarnation > 1:
            restored = None if start.skipped or start.in_memory is not None else start.name
            saves.after_start = lambda wait: tidier.after_start(restored, wait=wait)
        return saves

    def _say_promise(self, session: Session) -> None:
        traced, here = self.running.traced, self.participant.place
        constant = traced is not None and traced.keeps_variables
        promised = session.promised(session.callbacks.unsaved, session.callbacks.sets(constant=constant))
        if not is_news(self.slot.url, "promise", str(promised)):
            return
        watched = (
            counted(len(here.workers), "remote worker") if here.workers else counted(here.members, "worker")
        )
        level = logging.WARNING if promised.doubts else logging.INFO
        logger.log(level, "Watching over %s in %s. %s", watched, self.store.url, promised)
        if dropped := py_dataset.dropped(self.running.feed):
            logger.info("%s", dropped)
