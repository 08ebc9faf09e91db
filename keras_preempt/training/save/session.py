"""The training state of one fit: where it stands, what a save of it holds, and how it resumes from one.

Nothing here decides when to save (`saves`) or writes anything (`saver`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from keras_preempt.agreement.messages import Position
from keras_preempt.backend import pipelines
from keras_preempt.backend.keras.model_parts import first_reset_is_over, own_steps
from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.in_memory import InMemory
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.report.events import EventLog
from keras_preempt.state import inputs, py_dataset, step_logs
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.component import Component, Content, RestoreMoment, StoredState, captured
from keras_preempt.state.handover import unclaimed
from keras_preempt.state.input_exactness import gave_others, input_exactness
from keras_preempt.state.input_size import StateLimit
from keras_preempt.state.model import ModelState
from keras_preempt.state.progress import Progress
from keras_preempt.state.randomness import Randomness
from keras_preempt.state.regrouping import regrouped_for
from keras_preempt.state.shuffles import Shuffles
from keras_preempt.state.step_logs import StepLogs
from keras_preempt.state.validations import Validations
from keras_preempt.training.leave.start_errors import CAPTURING, RESTORING, explained
from keras_preempt.training.save.promise import (
    Promise,
    StepFacts,
    doubts_of_step,
    doubts_of_validation_step,
    promise,
    tell,
)
from keras_preempt.training.save.resuming import Restored, Start
from keras_preempt.training.save.snapshots import SnapshotTaker
from keras_preempt.training.save.step_count import StepCount

logger = logging.getLogger("keras_preempt")


class Session:
    """The training state of one fit: its variables, and its other components.

    Attributes:
        restored_name: The folder of the checkpoint that was restored; empty if none was.
        in_memory: What was restored, if it was in the memory of the machines; else None.
        committed: The newest checkpoint in the directory when the fit began, None if there was none: what was restored,
            unless that was in memory.
        restored_logs: The logs of the last execution before that checkpoint, as callbacks are given them.
        steps: The training steps that are done; `steps_at_start` were done before this fit ran its first one.
        callbacks: The states of the other callbacks.
        shuffles: Those of its training and validation data.
    """

    def __init__(
        self,
        model: keras.Model,
        fit: RunningFit,
        model_state: ModelState,
        callbacks: CallbackStates,
        setup: Setup,
        member: int,
        input_state: StateLimit | None = None,
    ) -> None:
        self._model = model
        self._fit = fit
        self.epochs, self.steps_per_execution = fit.epochs, fit.feed.steps_per_execution
        self._model_state = model_state
        self.callbacks = callbacks
        self.shuffles = Shuffles(fit.feed.dataset, fit.validation_data)
        inputs.record_states(fit.feed, self.shuffles, input_state)
        self._told_of_iterators = self._over = self._validation_seen = self._names_watched = False
        fragile = self.shuffles.fragile
        self._unwatch = pipelines.watch_iterators(fragile, self._iterator_made) if fragile else None
        self._validations = Validations(model, self.shuffles, model_state, callbacks)
        fit.before_evaluate = self._before_evaluate
        self._setup, self._member = setup, member
        self._input = inputs.Input(fit.feed, self.shuffles)
        self._logs = StepLogs(fit)
        self._components: list[Component] = [
            self._validations,
            Randomness(fit.feed),
            self.shuffles,
            callbacks,
            self._logs,
            self._input,
            Progress(model, fit, setup),
        ]
        self._before_validation: Content | None = None
        self._resume: StoredState | None = None
        self.restored_name = ""
        self.committed: str | None = None
        self.in_memory: InMemory | None = None
        self.restored_logs: Mapping[str, Any] | None = None
        self._checked = False
        self._nothing_trained = False
        self.steps = StepCount(own_steps(model), fit.feed.steps_per_execution, fit.feed.batches)
        self.steps_at_start = self.steps.done

    # -- Positions ----------------------------------------------------------------------------------

    def arrive(self, epoch: int, phase: str, batch: int) -> Position:
        """The main thread stands at a boundary; returns where that is. Raises like `_check_handed_over`."""
        self._fit.finish_hooks()  # What the callbacks remember of the last step is part of the state.
        position = self.position(epoch, phase, batch)
        self._check_handed_over()
        self._check_names()
        return position

    def position(self, epoch: int, phase: str, batch: int) -> Position:
        """Where the main thread stands. Before the first step after a resume, that is where the checkpoint stands."""
        if self._resume is not None:
            return self._resume.position
        if phase == "train":
            return Position(epoch, phase, batch, self.steps.before(batch))
        self._fit.finish_hooks()  # They count.
        return Position(epoch, phase, batch, self.steps.done)

    def snapshot_taker(self) -> SnapshotTaker:
        return SnapshotTaker(self._fit.feed, self.epochs, tells=self._member == 0)

    def promised(self, unsaved: Sequence[str], set_by_callbacks: Sequence[str] = ()) -> Promise:
        """Returns how exactly the fit would continue after a preemption; see `promise` for the arguments."""
        traced, validation = self._fit.traced, self._fit.validation_data
        step = StepFacts(
            operations=None if traced is None else traced.random_operations(),
            held=self._model_state.holds,
            unordered_sums=backend().unordered_sums(),
            condition=self._fit.condition,
            unkept=backend().unkept(self._model),
            draws_are_kept=backend().keeps_global_draws,
            validation_may_draw=validation is not None and backend().validation_may_draw(self._model),
        )
        data = input_exactness(self._fit.feed, validation)
        return promise(data, self.shuffles, step, unsaved, set_by_callbacks)

    def validation_ended(self) -> None:
        """A validation has ended; after the first one, looks at what its step draws.

        Only then does Keras have a trace of it; to trace it earlier would create what Keras creates later.
        """
        if self._validation_seen or self._member != 0:
            return
        self._validation_seen = True
        feed, trained = self._validations.feed, self._fit.traced
        if feed is None:
            return
        if of_data := gave_others(feed, "validation"):
            logger.warning("Perhaps not exact after a preemption: %s.", of_data)
        data = feed.dataset
        validated = None if data is None else backend().traced_validation(self._model, data)
        if validated is None or trained is None:
            return
        tell(
            doubts_of_validation_step(
                validated.random_operations(), trained.random_operations(), self._model_state.holds
            ),
            " Otherwise the logs of validations differ after a restart, and with them what callbacks do.",
        )

    @property
    def size(self) -> int:
        """Bytes of all variables that this worker may have to write."""
        sizes = self._model_state.sizes()
        return sizes.mirrored + sizes.local + sizes.held

    @property
    def steps_run(self) -> int:
        return self.steps.done - self.steps_at_start

    # -- Saving -------------------------------------------------------------------------------------

    def _iterator_made(self) -> None:
        """Something makes an iterator of the training data, which reshuffles while it is drawn."""
        if self._fit.feed.making or self._told_of_iterators or self._over:
            return
        self._told_of_iterators = True
        logger.warning(
            "NOT exact after a preemption from here until the next pass over the training data starts: "
            "something else than this fit makes an iterator of it, and it is reshuffled while it is drawn, ahead of "
            "training, so that the two change each other's order. Shuffle without .repeat() and steps_per_epoch, or go "
            "through another dataset."
        )

    def _before_evaluate(self) -> None:
        self._complete()
        self._validations.before_evaluate()

    def before_validation(self) -> None:
        """Keeps what the validation is about to change, so that a save during it starts it over."""
        self._check_handed_over()
        self._complete()
        components = [each for each in self._components if each.before_validation]
        content = captured(components, "validation")
        variables = self._validations.before()
        self._before_validation = Content(content.state, variables.joined(content.values))

    def validation_began(self) -> None:
        """The other callbacks have begun the validation: weights that one has changed would be saved as the weights."""
        self._model_state.metrics_are_reset()
        self._validations.began()

    def _check_names(self) -> None:
        """Says after the first step of an eager fit if a restart could not tell which restored value is whose."""
        if not self._names_watched or not self._fit.step_logs():
            return
        self._names_watched = False
        if (ambiguous := self._model_state.ambiguous()) and self._member == 0:
            logger.warning(
                "NOT resumable: several variables called %s are made while the model trains eagerly, and one is used "
                "before the others are there. A restart could not tell which saved value is its own, and ends with an "
                "error. Give their layers or metrics different names, or build the model before fit.",
                ", ".join(ambiguous),
            )

    def _check_handed_over(self) -> None:
        """Raises `UnclaimedValues` if a restored value has not found its variable, once a step has run."""
        if not self._model_state.waiting or self._resume is not None or not self._fit.step_logs():
            return
        self._model_state.look_again()
        if waiting := self._model_state.waiting:
            raise unclaimed(waiting)

    @property
    def resuming(self) -> bool:
        """Whether nothing was trained since the checkpoint was restored."""
        return self._resume is not None

    def capture(self, position: Position) -> Content:
        """Returns what a save at `position` holds beside the variables."""
        self._complete()
        self._input.locate(position.phase)
        if position.phase != "validation":
            return captured(self._components, position.phase)
        assert self._before_validation is not None
        before = self._before_validation
        now = captured([each for each in self._components if not each.before_validation], position.phase)
        return Content({**before.state, **now.state}, before.values.joined(now.values))

    def capture_variables(self) -> Mapping[str, Any]:
        """Returns the values of all variables, by name; of sharded ones the pieces that this worker holds."""
        self._complete()
        return self._model_state.capture().flat()

    def _complete(self) -> None:
        if not self._model_state.complete:
            self._model_state.look_again()  # Variables may have been made since, and reset.

    # -- Resuming -----------------------------------------------------------------------------------

    def restore(
        self, start: Start, events: EventLog, all_go: Callable[[str], bool], before: str | None = ""
    ) -> float:
        """Takes over the checkpoint that the workers agreed on, and says so; returns how many seconds that took.

        What Keras and the other callbacks will reset or touch before the first step is restored again then. The log
        line begins with `before`; there is none if that is None, as nothing will be trained. Raises
        `CorruptCheckpoint` if all checksums are right, but it is not what such a fit has saved.
        """
        assert start.restored is not None
        began = time.time()
        try:
            loaded, regrouped = regrouped_for(
                start.restored, self._model_state, self._fit.feed, self._member, self._setup
            )
            saved = StoredState.of(loaded, all_go)
            self._restore(saved, RestoreMoment.BEGIN)
            # Nobody is asked any more, and who asks holds the whole start.
            self._resume = replace(saved, values=self._kept(saved.values), all_go=lambda way: True)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise CorruptCheckpoint(start.name, f"a state of another structure ({error!r})") from error
        seconds = time.time() - began
        report = Restored(
            start, loaded, regrouped, saved.position, self._input.how, seconds, self._input.seconds
        )
        report.tell(events, self._member, before)
        self.restored_name, self.committed, self.in_memory = start.name, start.committed, start.in_memory
        self.restored_logs = step_logs.flat(self._logs.restored)
        position = saved.position
        self.steps.continue_at(position.step or 0, position.batch if position.phase == "train" else 0)
        self.steps_at_start = self.steps.done
        if self.steps_at_start:
            first_reset_is_over(self._model)
        if self._fit.traced is None and (trained := saved.state.get("trained")) is not None:
            with self.callbacks.trained.as_traced(trained):
                self._look_at_step(early=True)
            self._complete()
        return seconds

    def _restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        # Keras has just reset the metrics for an epoch that begins.
        left_out = ("metrics/",) if moment is RestoreMoment.EPOCH_BEGINS else ()
        self._model_state.restore(saved.values.select(lambda name, _: not name.startswith(left_out)))
        # What may warn or fail comes before the input, which may be drawn again for long.
        in_order = moment is RestoreMoment.BEGIN
        for component in self._components if in_order else reversed(self._components):
            component.restore(saved, moment)

    def _kept(self, values: WorkerValues) -> WorkerValues:
        """Returns what is restored again when an epoch begins, so that the rest of a checkpoint takes no memory."""
        later = tuple(prefix for component in self._components for prefix in component.later)
        small = self._model_state.small(values, everything=self.callbacks.set_weights_at_begin)
        return small.joined(values.select(lambda name, _: name.startswith(later)))

    def before_epoch(self) -> None:
        """First thing in on_epoch_begin: the other callbacks find the state that they left."""
        self._model_state.metrics_are_reset()
        self.callbacks.attributes.begin()
        if self._resume is not None:
            with explained(RESTORING):
                self._restore(self._resume, RestoreMoment.EPOCH_BEGINS)
        elif not self._model_state.complete and not self._fit.step_logs():
            self._names_watched = True
            self._model_state.watch_names()

    def after_epoch_begin(self) -> None:
        """Last thing in on_epoch_begin: a resumed epoch has begun before, so it must leave no trace."""
        if not self._checked:
            # State that cannot be saved is an error now, not when the machine is about to go.
            with explained(CAPTURING):
                self.callbacks.capture("epoch", WorkerValues())
            self._checked = True
            self.callbacks.attributes.tell_unkept(self._member)
            self.callbacks.trained.epoch_has_begun()
        resumed, self._resume = self._resume, None
        if resumed is not None and resumed.position.phase in ("train", "validation"):
            with explained(RESTORING):
                self._restore(resumed, RestoreMoment.EPOCH_BEGUN)
        else:
            py_dataset.begin_epoch(self._fit.feed)

    def epoch_ended(self) -> None:
        """The batches of an epoch have been trained on."""
        self.steps.epoch_is_over()
        if (doubt := gave_others(self._fit.feed, "epoch")) and self._member == 0:
            logger.warning("Perhaps not exact after a preemption: %s.", doubt)
        self.callbacks.attributes.tell_unkept(self._member)
        if self._fit.traced is None:
            self._look_at_step()

    def _look_at_step(self, *, early: bool = False) -> None:
        """Looks at what a training step draws that was not traced before the fit began."""
        self._fit.traced = traced = backend().trace(self._model, self._fit.feed.dataset, early=early)
        if traced is None or self._member != 0:
            return
        tell(doubts_of_step(traced.random_operations(), self._model_state.holds, "training step"))

    def nothing_to_train(self) -> None:
        """First thing in on_train_end: no epoch was left, so the state was not handed over yet."""
        if self._resume is None:
            return
        counted = self._resume.state.get("shuffles") is not None and self.shuffles.readable
        validated = (
            None if counted else self._fit.validate_without_drawing(len(self._validations.restored_draws))
        )
        if validated is not None and pipelines.reshuffles_while_drawn(validated):
            logger.warning(
                "A later fit with the same validation data is not exact: it reshuffles while it is drawn, and this "
                "fit, which had ended, draws nothing. Make a dataset for each fit."
            )
        self._restore(self._resume, RestoreMoment.EPOCH_BEGUN)
        self._resume = None
        self._nothing_trained = True
        # Keras has done so once before this hook, with averages of weights for one; that is to stay.
        if isinstance(self._model.optimizer, keras.optimizers.Optimizer) and not self._model_state.waiting:
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)

    def end(self) -> None:
        """Leaves the model as Keras expects it for its next fit."""
        self._over = True
        if self._unwatch is not None:
            self._unwatch()
        self._fit.feed.let_go()
        self._fit.validation_data = None
        if (validated := self._validations.feed) is not None:
            validated.let_go()
        self._fit.forget_start()
        if self._nothing_trained:  # Its variables may come into being only now, as in an evaluation.
            vars(self._model)["_keras_preempt_state"] = self._model_state
        else:
            self._model_state.wait_no_more()
