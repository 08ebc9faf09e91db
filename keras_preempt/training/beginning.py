"""The beginning of a fit: the workers agree on a checkpoint, resume from it, and are ready for the first step."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_preempt.backend.keras.callbacks import ProgressBar
from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.other_workers import Setup, load_for
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import log
from keras_preempt.process.words import counted
from keras_preempt.report.events import EventLog, Milestones, log_name
from keras_preempt.report.progress import transfer
from keras_preempt.report.tensorboard import Points
from keras_preempt.state import architecture, callback_code, py_dataset
from keras_preempt.state.callbacks import CallbackStates, refuse_rivals
from keras_preempt.state.description import identity_of_run, setup_of
from keras_preempt.state.model import ModelState
from keras_preempt.training import reading, requests, shared_files, side_by_side, startup
from keras_preempt.training.fit import Fit
from keras_preempt.training.handshake import START_TIMEOUT, Handshake
from keras_preempt.training.options import Options
from keras_preempt.training.participant import Ending, Participant, described
from keras_preempt.training.peers import Peers
from keras_preempt.training.promise import Promise
from keras_preempt.training.reading_ahead import reading_ahead
from keras_preempt.training.resuming import resumed_from
from keras_preempt.training.saver import Saver
from keras_preempt.training.saves import Saves
from keras_preempt.training.session import Session
from keras_preempt.training.several_fits import Turn, take_notices
from keras_preempt.training.space import check_space
from keras_preempt.training.start_errors import AGREEING, DESCRIBING, LOOKING, RESTORING, Reached, explained
from keras_preempt.training.structure import checked
from keras_preempt.training.tidier import Tidier
from keras_preempt.training.timers import Interval

logger = logging.getLogger("keras_preempt")

_INPUT = "input"
"""The question of the start about the way of the input to its position."""

_fits = 0
"""How many fits this process has begun. The workers of a job run one program, so it is the same on all."""


@dataclass(frozen=True)
class _Found:
    """A fit before the workers have agreed on anything."""

    model: keras.Model
    running: RunningFit
    others: list[keras.callbacks.Callback]
    bar: ProgressBar
    setup: Setup
    turn: Turn
    options: Options
    participant: Participant
    milestones: Milestones


@dataclass(frozen=True)
class _Agreed:
    """What the workers have agreed on, and whether the fit had ended, so that there is nothing to train."""

    start: startup.Start
    model_state: ModelState
    over: bool


def begin(
    model: keras.Model, first: keras.callbacks.Callback, last: keras.callbacks.Callback, options: Options
) -> Fit:
    """Begins a fit, in its on_train_begin; returns when the workers agree on how it begins.

    Args:
        model: The model that is fitted.
        first: Ours among the callbacks of the fit; it becomes the first.
        last: Another one, which becomes the last. Only the fit's own list of callbacks may hold it: when that goes,
            the fit has been left.
        options: What the user has asked for.

    Raises:
        ValueError: The fit cannot be preempted as it is called; the message says why.
        CheckpointError: The directory cannot be used, or no checkpoint in it.
        StartError: Another worker had an error, or did not appear.
        Exception: What the model raises where it is traced, and what another worker has raised.
    """
    began = time.time()
    turn = Turn(options.store, options.staging_dir)
    ending = Ending()
    with ending.on_error(), explained(LOOKING) as reached:
        found = _find(model, first, last, options, turn, ending)
        # Until they have agreed, the workers tell each other of errors in `startup`.
        with _settled(
            found, lambda error: backend().errors.says_a_loss(error, found.participant.place.workers)
        ):
            agreed = _agree(found, reached)
        with _settled(found):
            fit = _resume(found, agreed, reached, began)
        # Whatever ends the fit ends what was started for it, also an exception, of which no hook is told.
        left = weakref.finalize(last, fit.abandon)
        ending.add(left.detach)
    return fit


def _find(
    model: keras.Model,
    first: keras.callbacks.Callback,
    last: keras.callbacks.Callback,
    options: Options,
    turn: Turn,
    ending: Ending,
) -> _Found:
    """Looks at what the fit is called with, and gets ready to talk to the other workers."""
    global _fits
    store = turn.store
    store.deadline = None  # It may have served a fit before, under a notice of that time.
    ending.add(turn.release)
    ending.add(lambda: log.watch_bar(None))
    ending.add(turn.close)
    strategy = backend().strategy_of(model)
    here = backend().place(strategy)
    running = backend().running_fit(model)
    ending.add(running.guard(lambda error: _settle(participant, error)))
    others = running.take_callbacks(first, last)
    if rivals := [callback for callback in others if isinstance(callback, type(first))]:
        raise ValueError(
            f"Expected one PreemptionCallback in a fit. Received: {len(rivals) + 1}. Remove all but one."
        )
    turn.claim()
    refuse_rivals(others)
    bar = ProgressBar(others)
    log.watch_bar(bar.drawn_at)
    _fits += 1
    events = EventLog(here.member)
    ending.add(events.close)
    milestones = Milestones(events)

    def machine_goes(at: float | None) -> None:
        store.deadline = at  # Cuts every call to the storage so that it is over by then.

    coordinator = backend().coordinator(here)
    participant = Participant(
        here, coordinator, events, options.termination, _fits, ending, machine_goes, options.on_event
    )
    replicas, layout = backend().replicas(strategy), backend().layout(strategy)
    setup = setup_of(model, running.feed, replicas, here.members, layout)
    return _Found(model, running, others, bar, setup, turn, options, participant, milestones)


def _agree(found: _Found, reached: Reached) -> _Agreed:
    """Builds the model if need be, and agrees with the other workers on the checkpoint to continue from."""
    model, running, turn, participant = found.model, found.running, found.turn, found.participant
    store, here, strategy = turn.store, participant.place, backend().strategy_of(model)
    alone = side_by_side.alone(strategy, here)
    model_states: list[ModelState] = []

    def identity() -> dict[str, Any]:
        reached.stage = DESCRIBING
        outdated = callback_code.set_before_first_step(found.others)
        # No worker may trace more often than the others; and an optimizer is built for what is trainable.
        early = not outdated or (here.members == 1 and not callback_code.may_be_trainable(outdated))
        running.traced = backend().trace(model, running.feed.dataset, early=early, again=bool(outdated))
        traced = running.traced
        assigned = callback_code.may_assign(found.others)
        used = () if traced is None else traced.variables if assigned else traced.changed_variables
        model_states.append(ModelState(model, strategy, complete=traced is not None, used=used))
        compared = identity_of_run(model, model_states[0], running, found.setup, turn.begun_after)
        reached.stage = AGREEING
        return compared

    def prepare() -> None:
        store.prepare()
        check_space(store, model_states[0], here.members, backend().replicas(strategy) // here.members)

    def read(store: Store, info: CheckpointInfo, member: int, members: int) -> Loaded:
        with found.milestones.reading():
            wanted = model_states[0].wanted()
            return checked(info, load_for(store, info, member, found.setup, transfer, wanted), member)

    gather = backend().gather(here, START_TIMEOUT) if here.members > 1 else None

    def read_share(store: Store, info: CheckpointInfo, member: int, members: int) -> reading.Share:
        assert gather is not None
        with found.milestones.reading():
            which, wanted = (member, members), model_states[0].wanted()
            share = reading.read_share(store, info, which, found.setup, gather, exchanging, wanted)
            checked(info, share.loaded, member)
            return share

    @contextlib.contextmanager
    def exchanging() -> Iterator[None]:
        # The others are in the exchange as well, and wait for this worker. A file that arrived damaged is told later.
        with (
            found.milestones.reading(),
            _settled(found, lambda error: not isinstance(error, CheckpointError)),
        ):
            yield

    def claimed(incarnation: int) -> None:
        if alone is not None:
            alone.refuse_company(store, incarnation)
            alone.warn()

    settings = {
        "retention": found.options.retention.to_json(),
        **({} if alone is None else alone.claim()),
    }
    with reading_ahead(store):
        start = startup.begin(
            participant.coordinator,
            participant.number,
            store,
            prepare,
            identity,
            read,
            settings,
            claimed,
            beside=turn.beside,
            tells=shared_files.written_by(found.others),
            told=shared_files.warn,
            read_share=None if gather is None else read_share,
            together=found.options.together,
        )
    over = False
    if start.restored is not None and start.restored.manifest.finished:
        done = int(start.restored.manifest.position["epoch"])
        over = done >= running.epochs or bool(start.restored.state.get("stopped"))
        if not over:
            turn.refuse_longer(done, running.epochs)
    reached.stage = LOOKING
    description = architecture.describe(model)
    if here.member == 0:
        architecture.keep(store, start.incarnation, description)
    return _Agreed(start, model_states[0], over)


def _resume(found: _Found, agreed: _Agreed, reached: Reached, began: float) -> Fit:
    """Makes the fit, takes over the checkpoint, and takes part in rounds from now on."""
    participant, running, milestones = found.participant, found.running, found.milestones
    runtime, status, ending = participant.runtime, participant.status, participant.ending
    start, store, here = agreed.start, found.turn.store, participant.place
    chief = here.member == 0
    callbacks = CallbackStates(found.others, agreed.model_state.holder())
    if start.restored is None and start.incarnation > 1:
        callbacks.begin_again_without_state()
    session = Session(
        found.model,
        running,
        agreed.model_state,
        callbacks,
        found.setup,
        here.member,
        found.options.input_state,
    )
    ending.add(lambda: milestones.end(ending.why, lambda: session.steps.done))
    ending.add(session.end)
    participant.events.open(start.incarnation, store.append_log(log_name(start.incarnation, here.member)))
    milestones.started(start.incarnation, here.members, backend().versions())
    status.begin(here.member, start.incarnation, store.key)
    restored_step = None if start.restored is None else start.restored.manifest.step
    points = Points(found.others if chief else (), store.key, start.incarnation, restored_step)
    ending.add(points.close)
    saves = _saves(found, agreed, session, points)
    ending.add(lambda: participant.write_status(start.incarnation, saves.safe_step, session))
    ending.add(saves.end)
    for notice in take_notices():
        runtime.notify(notice)
    participant.start()
    before = found.turn.trains() if chief and not agreed.over else ""
    if chief and not agreed.over:
        constant = running.traced is not None and running.traced.keeps_variables
        _say_promise(found, session.promised(callbacks.unsaved, callbacks.sets(constant=constant)))
    status.spent("startup", time.time() - began)
    if start.restored is not None:
        reached.stage = RESTORING
        handshake = Handshake(participant.coordinator, participant.number)
        with handshake.telling_of(_INPUT):
            seconds = session.restore(
                start,
                participant.events,
                lambda way: handshake.is_shared(_INPUT, way),
                None if agreed.over else before,
            )
        status.spent("restore", seconds)
        if agreed.over and chief:
            found.turn.had_ended(running.epochs)
    elif before:
        logger.info("%s", before.rstrip())
    reached.stage = LOOKING
    hook = found.options.hook(here.member, store.key, session, saves, runtime)
    ending.add(hook.close)
    if hook.every_boundary:
        runtime.every_boundary = runtime.attention = True
    beginning = session.position(running.initial_epoch, "epoch", 0)
    milestones.ready(beginning, running.epochs, found.options.schedule.ahead(session.steps_per_execution))
    saves.begin(beginning)
    runtime.at_risk = saves.at_risk
    runtime.pace.to_save = session.size
    runtime.pace.leave(runtime.entered)
    fit = Fit(
        found.model,
        found.turn,
        participant,
        session,
        saves,
        hook,
        milestones,
        points,
        found.bar,
        beginning,
        resumed_from(start),
    )
    if found.options.schedule.seconds is not None and chief:
        ending.add(Interval(found.options.schedule.seconds, runtime.call_periodic).stop)
    look = found.options.look
    if look is not None and chief and not agreed.over:
        answers = requests.Requests(
            store,
            start.incarnation,
            look,
            runtime.call_requested,
            lambda: runtime.has_to_leave,
            participant.events.emit,
        )
        saves.on_capture, saves.on_saved = answers.captured, answers.saved
        ending.add(lambda: answers.stop(ending.why))
    status.began_training()
    return fit


def _saves(found: _Found, agreed: _Agreed, session: Session, points: Points) -> Saves:
    participant, store = found.participant, found.turn.store
    here, runtime, incarnation = participant.place, participant.runtime, agreed.start.incarnation
    tidier = Tidier(store, found.options.retention, incarnation, lambda: runtime.has_to_leave)
    participant.ending.add(tidier.stop)
    saver = Saver(
        store,
        agreed.model_state,
        here.member,
        here.members,
        incarnation,
        tidier,
        participant.events,
        points.saved,
        Peers(participant.coordinator),
        runtime.patience,
    )
    saves = Saves(session, saver, found.options.schedule, here.members, runtime.pace)
    if here.member == 0 and incarnation > 1:
        restored = None if agreed.start.skipped else agreed.start.name
        saves.after_start = lambda wait: tidier.after_start(restored, wait=wait)
    return saves


def _say_promise(found: _Found, promised: Promise) -> None:
    if not found.turn.is_news("promise", str(promised)):
        return
    here = found.participant.place
    watched = counted(len(here.workers), "remote worker") if here.workers else counted(here.members, "worker")
    level = logging.WARNING if promised.doubts else logging.INFO
    logger.log(level, "Watching over %s in %s. %s", watched, found.turn.store.url, promised)
    if dropped := py_dataset.dropped(found.running.feed):
        logger.info("%s", dropped)


# -- Errors, and the end -------------------------------------------------------------------------------


@contextlib.contextmanager
def _settled(found: _Found, which: Callable[[BaseException], bool] = lambda error: True) -> Iterator[None]:
    """Settles the errors that leave the block, if they are of those that `which` says."""
    try:
        yield
    except BaseException as error:
        raised = _settle(found.participant, error) if which(error) else error
        if raised is not error:
            raise raised from error
        raise


def _settle(participant: Participant, error: BaseException) -> BaseException:
    """An error is on its way out of the fit; ends that, and returns the error to raise."""
    raised = participant.settle(error)
    participant.ending.end(described(raised))
    return raised
