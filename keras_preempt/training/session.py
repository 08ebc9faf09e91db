"""One fit under the callback: what it began with, what a save of it holds, and how it resumes.

The session stands between Keras' hooks (in `callback`) and the machinery without Keras (in `runtime`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import keras

from keras_preempt.agreement.alignment import Position
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.model_parts import steps_done, steps_of_parts
from keras_preempt.backend.keras.running_fit import RunningFit, builds_before_evaluating, evaluation_iterator
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.other_workers import SETUP, LoadedFromOthers, Setup
from keras_preempt.checkpoint.reader import Loaded
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state import inputs, py_dataset, randomness, step_logs
from keras_preempt.state.callbacks import CHANGES_WEIGHTS, CallbackStates
from keras_preempt.state.handover import find_waiting, not_regrouped, unclaimed
from keras_preempt.state.model import ModelState
from keras_preempt.state.shuffles import Counts, Shuffles
from keras_preempt.state.validations import Validated
from keras_preempt.training.regrouping import Regrouped, regroup_checkpoint
from keras_preempt.training.saver import Content
from keras_preempt.training.start_errors import CAPTURING, RESTORING, explained

logger = logging.getLogger("keras_preempt")


class Session:
    """The training state of one fit.

    Args:
        model: The model that is fitted.
        fit: Its running fit.
        model_state: Its variables.
        callbacks: The states of the other callbacks.
        setup: What it trains on.
        member: The number of this worker.

    Attributes:
        logs: The logs of the last execution, as callbacks are given them.
        restored_name: The folder of the checkpoint that was restored; empty if none was.
        regrouped: What came of a checkpoint of other workers or replicas; None if none was restored.
        steps_at_start: Optimizer steps done before this fit ran its first one.
        shuffles: Those of its training and validation data.
        input_seconds: How long it took to bring the input where it stood, in a restore.
    """

    def __init__(
        self,
        model: keras.Model,
        fit: RunningFit,
        model_state: ModelState,
        callbacks: CallbackStates,
        setup: Setup,
        member: int,
    ) -> None:
        self._model = model
        self._setup = setup
        self._member = member
        self._fit = fit
        self.shuffles = Shuffles(fit.feed.dataset, fit.validation_data)
        inputs.watch(fit.feed, self.shuffles)
        self._told_of_iterators = self._over = False
        fragile = self.shuffles.fragile
        self._unwatch = (
            backend().reshuffling.watch_iterators(fragile, self._iterator_made) if fragile else None
        )
        fit.before_evaluate = self._before_evaluate
        self._validated = Validated()
        self._counts_before_validation: Counts | None = None
        self._model_state = model_state
        self._callbacks = callbacks
        self._evaluation: InputFeed | None = None
        self._evaluation_draws: list[int] = []
        self._before_validation: _Captured | None = None
        self._weights_before: dict[str, Array] | None = None
        self._resume: _Resume | None = None
        self.restored_name = ""
        self.regrouped: Regrouped | None = None
        self.input_seconds = 0.0
        self._checked = False
        self._nothing_trained = False
        self.logs: Mapping[str, Any] | None = None
        self._restored_logs: Any = None
        self._parts_before = steps_of_parts(model)
        self.steps_at_start = self._steps_done()

    # -- Positions ----------------------------------------------------------------------------------

    def position(self, epoch: int, phase: str, batch: int) -> Position:
        """Where the main thread stands. Before the resumed step, that is where the checkpoint stands."""
        if self._resume is not None:
            where = self._resume.where
            return Position(where["epoch"], where["phase"], where["batch"], where["step"])
        return Position(epoch, phase, batch, self._steps_done())

    @property
    def validation_data(self) -> Any:
        """What the fit was given as that."""
        return self._fit.validation_data

    @property
    def epochs(self) -> int:
        """The number of epochs that this fit was asked for."""
        return self._fit.epochs

    @property
    def steps_per_execution(self) -> int:
        """Optimizer steps between two boundaries of training."""
        return self._fit.feed.steps_per_execution

    @property
    def steps_run(self) -> int:
        """Optimizer steps that this fit has run."""
        return self._steps_done() - self.steps_at_start

    def _steps_done(self) -> int:
        return steps_done(self._model, self._parts_before)

    # -- Saving -------------------------------------------------------------------------------------

    def _iterator_made(self) -> None:
        """Somebody makes an iterator of the training data, which reshuffles while it is drawn."""
        if self._fit.feed.making or self._told_of_iterators or self._over:
            return
        self._told_of_iterators = True
        logger.warning(
            "NOT exact after a preemption from here until the training data is begun anew: something else than this "
            "fit makes an iterator of it, and it is reshuffled while it is drawn, ahead of training, so that the two "
            "change each other's order. Shuffle without .repeat() and steps_per_epoch, or go through another dataset."
        )

    def _before_evaluate(self) -> None:
        """Before Keras makes an iterator for a validation, to look at a batch or to go through all."""
        self._counts_before_validation = self.shuffles.counts()
        if self._evaluation is not None:
            self._validated.goes_on = self._evaluation.goes_on

    def before_validation(self) -> None:
        """Keeps what the validation is about to change, so that a save during it starts it over."""
        self.check_handed_over()
        if not self._model_state.complete:
            self._model_state.look_again()
        source = evaluation_iterator(self._model)
        if source is not None and (self._evaluation is None or not self._evaluation.belongs_to(source)):
            self._evaluation = backend().feed(source)
            self._evaluation.note = self.shuffles.counts
            looks = builds_before_evaluating(self._model)
            before = self._counts_before_validation
            self._validated.draw_again(
                self._evaluation, self._evaluation_draws, self.shuffles, before, looks=looks
            )
        elif self._evaluation is not None and builds_before_evaluating(self._model):
            self._evaluation.looked_at()
        draws = self._evaluation_draws if self._evaluation is None else self._evaluation.draws
        self._before_validation = self._capture_small(draws, self._counts_before_validation, validating=True)
        changes = self._callbacks.change_weights
        self._before_validation.overrides = self._model_state.capture_changed_by_validation(weights=changes)
        self._weights_before = None if changes else self._model_state.sample()

    def validation_began(self) -> None:
        """The other callbacks have begun the validation: weights that one has changed would be saved as the weights."""
        self._model_state.metrics_are_reset()
        if self._weights_before is not None and not self._model_state.is_like(self._weights_before):
            logger.warning(
                "A callback changes the weights for the validation. A preemption within this one would save the "
                "changed weights: NOT exact. The next ones are safe; for this one as well, set %s = True on that "
                "callback.",
                CHANGES_WEIGHTS,
            )
            self._callbacks.change_weights = True

    def check_handed_over(self) -> None:
        """Makes sure that every restored value has found its variable, once a step was run.

        Raises:
            UnclaimedValues: Some have not.
        """
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
        if not self._model_state.complete:
            self._model_state.look_again()
        captured = self._before_validation if position.phase == "validation" else None
        if captured is None:
            captured = self._capture_small(
                self._draws_when_evaluated_next(), self.shuffles.counts(), validating=False
            )
        arrays = dict(captured.arrays)
        feed = self._fit.feed
        place = feed.position(pending=position.phase == "train")
        state = {
            **captured.state,
            "input": inputs.capture(feed, place, arrays, inside=position.phase == "train"),
            SETUP: self._setup.to_json(),
            "stopped": bool(position.phase == "end" and self._model.stop_training),
        }
        return Content(state, arrays, captured.mirrored, captured.overrides)

    def _draws_when_evaluated_next(self) -> list[int]:
        """Batches drawn of each iterator over the validation data by the time that the next validation begins.

        Under a strategy, Keras looks at one more batch before each. The restarted process does so by itself before
        its first one; all the others it has to draw again.
        """
        if self._evaluation is None:
            return self._evaluation_draws
        builds = builds_before_evaluating(self._model)
        return self._evaluation.draws_after_next_look() if builds else self._evaluation.draws

    def _capture_small(
        self, evaluation_draws: list[int], counts: Counts | None, *, validating: bool
    ) -> _Captured:
        arrays: dict[str, Array] = {}
        if self._evaluation is not None:
            goes_on = self._validated.goes_on if validating else self._evaluation.goes_on
            self._validated = Validated(list(self._evaluation.noted), validating, goes_on)
        of_epoch = self._fit.epoch_logs() if validating else None
        if step_logs.change_later(of_epoch):
            of_epoch = None  # Then they are read from the metrics again, and change with them as in Keras.
        state = {
            "random": randomness.capture(arrays),
            "callbacks": self._callbacks.capture(arrays),
            "logs": step_logs.encode(self._fit.step_logs() or self._restored_logs, arrays),
            "epoch_logs": step_logs.encode(of_epoch, arrays, "epoch_logs"),
            "evaluation_iterators": len(evaluation_draws),
            "evaluation_draws": evaluation_draws,
            "validated": self._validated.to_json(),
            "shuffles": counts,
            "shuffle_seeds": self.shuffles.seeds(),
        }
        # Copies of mirrored weights are as alike on all workers as the weights: the writers share them too.
        shared = self._callbacks.copies_of_weights(self._model_state.mirrored_weights())
        mirrored = {name: arrays.pop(name) for name in shared.intersection(arrays)}
        return _Captured(state, arrays, dict(sorted(mirrored.items())))

    # -- Resuming -----------------------------------------------------------------------------------

    def restore(self, loaded: Loaded, name: str) -> str:
        """Takes over a checkpoint; says in words how the input got there.

        What Keras and the other callbacks will reset or touch before the first step is restored again by
        `before_epoch` and `after_epoch_begin`.
        """
        if isinstance(loaded, LoadedFromOthers):
            loaded = self._regroup(loaded)
        where = loaded.manifest.position
        phase, epoch, batch = where["phase"], int(where["epoch"]), int(where["batch"])
        state = loaded.state
        for later in ("callbacks", "random"):  # Better now, with nothing changed, than at the first epoch.
            state[later].keys()
        self._callbacks.restore_files(state["callbacks"], loaded.local)
        self._model_state.restore(loaded.tensors, loaded.local)
        began = time.time()
        if not self.shuffles.are_like(state.get("shuffle_seeds")):
            logger.warning(
                "NOT exact: the shuffles of the data, or their seeds, are others than when the checkpoint was written, "
                "so that the data comes in another order. Call keras.utils.set_random_seed right before the dataset is "
                "made: a seed of shuffle() counts together with the global one of the moment when the dataset is made."
            )
        training = batch if phase == "train" else None
        how = inputs.restore(
            self._fit.feed, state["input"], loaded.local, batch=training, shuffles=self.shuffles
        )
        self.input_seconds = time.time() - began
        made = int(state["evaluation_iterators"])
        self._evaluation_draws = [int(batches) for batches in state.get("evaluation_draws", [0] * made)]
        self._validated = Validated.from_json(state.get("validated", {}))
        if phase == "validation":
            self._fit.feed.skip_next_epoch()
        self._restored_logs = logs = step_logs.decode(state["logs"], loaded.local)
        self.logs = step_logs.flat(logs)
        of_epoch = step_logs.decode(state.get("epoch_logs"), loaded.local)  # Absent before release 0.2.
        if phase == "validation" and of_epoch:
            self._fit.logs_of_an_epoch_without_steps(of_epoch, of_step=False)
        elif phase in ("train", "validation") and logs:
            self._fit.logs_of_an_epoch_without_steps(logs, of_step=True)
        self._fit.start_at(max(epoch, self._fit.epochs) if state["stopped"] else epoch)
        self._resume = _Resume(
            dict(where),
            dict(state),
            {
                key: value
                for key, value in {**loaded.tensors, **loaded.local}.items()
                if key.startswith(("callbacks/", "random/"))
            },
            self._model_state.small(loaded.tensors),
            self._model_state.small(loaded.local),
            drawing=inputs.is_drawing(state["input"], batch=training),
        )
        self.restored_name = name
        self.steps_at_start = self._steps_done()
        return how

    def _regroup(self, found: LoadedFromOthers) -> Loaded:
        feed = self._fit.feed
        self.regrouped = regroup_checkpoint(
            found,
            self._model_state,
            self._member,
            self._setup,
            steps_per_execution=feed.steps_per_execution,
            num_batches=feed.position(pending=False)["num_batches"],
        )
        loaded = self.regrouped.loaded
        _, later = find_waiting(
            loaded.tensors, loaded.local, {**self._model_state.mirrored, **self._model_state.local}
        )
        if later:
            raise not_regrouped(later)
        return loaded

    def before_epoch(self) -> None:
        """First thing in on_epoch_begin: the other callbacks find the state that they left."""
        self._model_state.metrics_are_reset()
        if self._resume is not None:
            with explained(RESTORING):
                self._restore_small(self._resume, variables=False)

    def after_epoch_begin(self) -> None:
        """Last thing in on_epoch_begin: a resumed epoch has begun before, so it must leave no trace."""
        if not self._checked:
            # State that cannot be saved is an error now, not when the machine is about to go.
            with explained(CAPTURING):
                self._callbacks.capture({})
            self._checked = True
            self._trace_again_if_outdated()
        resumed, self._resume = self._resume, None
        if resumed is not None and resumed.where["phase"] in ("train", "validation"):
            with explained(RESTORING):
                self._restore_small(resumed, variables=True)
        else:
            py_dataset.begin_epoch(self._fit.feed)

    def _trace_again_if_outdated(self) -> None:
        alone = self._setup.workers == 1
        changed = (
            [] if self._fit.traced is None else self._fit.traced.drop_if_outdated(self._model, alone=alone)
        )
        if changed and not alone:
            logger.warning(
                "A callback has set %s of the model after the training step was traced, which several workers do only "
                "once: the step goes on with the values of before. Set them before fit.",
                ", ".join(changed),
            )

    def nothing_to_train(self) -> None:
        """First thing in on_train_end: no epoch was left, so the state was not handed over yet."""
        if self._resume is None:
            return
        counted = self._resume.state.get("shuffles") is not None and self.shuffles.readable
        validated = None if counted else self._fit.validate_without_drawing(len(self._evaluation_draws))
        if validated is not None and backend().datasets.reshuffles_while_drawn(validated):
            logger.warning(
                "A later fit with the same validation data is not exact: it reshuffles while it is drawn, and this "
                "fit, which had ended, draws nothing. Make a dataset for each fit."
            )
        self._restore_small(self._resume, variables=True)
        self._resume = None
        self._nothing_trained = True
        # Keras has done so once before this hook, with averages of weights for one; that is to stay.
        if isinstance(self._model.optimizer, keras.optimizers.Optimizer) and not self._model_state.waiting:
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)

    def _restore_small(self, resume: _Resume, *, variables: bool) -> None:
        if variables:
            self._model_state.restore(resume.mirrored, resume.local)
        for difference in self._callbacks.restore(resume.state["callbacks"], resume.arrays):
            if not resume.told:
                logger.warning("The callbacks differ: %s. Its state starts afresh.", difference)
        resume.told = True
        self.shuffles.go_to(resume.state.get("shuffles"), drawing=resume.drawing)
        randomness.restore(resume.state["random"], resume.arrays)

    def leave(self) -> None:
        """What callbacks hold back is written before the process ends."""
        self._callbacks.flush()

    def end(self) -> None:
        """Leaves the model as Keras expects it for its next fit."""
        self._over = True
        if self._unwatch is not None:
            self._unwatch()
        self._fit.forget_start()
        if self._nothing_trained:  # Its variables may come into being only now, as in an evaluation.
            vars(self._model)["_keras_preempt_state"] = self._model_state
        else:
            self._model_state.wait_no_more()


class _Captured:
    """What is captured without the variables."""

    def __init__(self, state: dict[str, Any], arrays: dict[str, Array], mirrored: dict[str, Array]) -> None:
        self.state = state
        self.arrays = arrays
        self.mirrored = mirrored
        self.overrides: dict[str, Array] = {}


class _Resume:
    """What is still to be handed over of a restored checkpoint."""

    def __init__(
        self,
        where: dict[str, Any],
        state: dict[str, Any],
        arrays: dict[str, Array],
        mirrored: dict[str, Array],
        local: dict[str, Array],
        *,
        drawing: bool,
    ) -> None:
        self.where = where
        self.drawing = drawing
        self.state = state
        self.arrays = arrays
        self.mirrored = mirrored
        self.local = local
        self.told = False
