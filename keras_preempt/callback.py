"""`PreemptionCallback`: one line in `model.fit`, and the training survives the loss of its machines."""

from __future__ import annotations

import datetime
import logging
import os
import time
import weakref
from typing import Any, NoReturn

import keras

from keras_preempt.backend.keras.model_parts import steps_done
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.notices.termination import TerminationConfig, check_no_arguments
from keras_preempt.process import log
from keras_preempt.training import drill_place
from keras_preempt.training.fit import Supervision
from keras_preempt.training.propagation import tell_uncaught_loss
from keras_preempt.training.runtime import Runtime
from keras_preempt.training.schedule import chosen
from keras_preempt.training.several_fits import Turn

logger = logging.getLogger("keras_preempt")


class PreemptionCallback(keras.callbacks.Callback):
    """Saves one checkpoint when the job is about to be preempted, and resumes from it bit-identically.

    When any worker gets a termination signal, all workers stop at the same step, write one checkpoint and
    exit with status 75. Started again, the same script continues at the next batch as if nothing had
    happened: weights, optimizer, random state, data order, metrics, History and the state of Keras' own
    callbacks. See docs/how-it-works.md for what is guaranteed.

    Args:
        directory: Where the checkpoints are: a path that all workers share, or ``gs://bucket/prefix``. One run of
            one model.
        termination: How notices arrive and how the job ends; None for SIGTERM and exit status 75.
        save_every: When to save in the background while nothing happens: a number of optimizer steps,
            "epoch", or a time such as "10min" or a `datetime.timedelta`. None: never.
        max_to_keep: How many of the checkpoints that were committed last stay in the directory; at least 1.
        keep_every: Which stay beside them for ever, the first one of each: a number of optimizer steps, "epoch", or
            a time such as "1h" or a `datetime.timedelta`. None: no others.
        staging_dir: An existing directory on a local disk, for files on their way to or from a bucket; each worker
            makes one of its own in it, and removes it when fit ends. None: the system's temporary directory.
            A directory that is no bucket has no use for it.

    Raises:
        ValueError: An argument is not what it should be.
        ImportError: Keras does not run on TensorFlow, or one of them is too old.

    Example:
        >>> model.fit(dataset, epochs=10, callbacks=[PreemptionCallback("gs://bucket/runs/1")])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        termination: TerminationConfig | None = None,
        save_every: object = None,
        max_to_keep: int = 2,
        keep_every: int | str | datetime.timedelta | None = None,
        staging_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        backend()  # Refuses, before anything else is done, a backend on which this package does not work.
        log.show()
        tell_uncaught_loss()
        if staging_dir is not None and not _is_local_path(staging_dir):
            raise ValueError(
                f"Expected staging_dir to be a path. Received: {staging_dir!r}. Pass an existing directory on a "
                "local disk, or leave it out."
            )
        self._retention = Retention(max_to_keep, keep_every)
        if termination is not None and not isinstance(termination, TerminationConfig):
            raise ValueError(f"Expected termination to be a TerminationConfig. Received: {termination!r}.")
        self._store = open_store(drill_place.replaced(directory), staging_dir=staging_dir)
        self._staging_dir = staging_dir
        self._turn: Turn | None = None
        self._termination = termination or TerminationConfig()
        check_no_arguments("save_fn", self._termination.save_fn)
        self._schedule = chosen(save_every)
        self._supervision: Supervision | None = None
        self._runtime: Runtime | None = None  # Of the supervision; here as well, for the hot hooks.
        self._epoch = 0
        self._epoch_ended = self._test_began = 0.0
        # fit builds the model before it calls a callback, so the repair must be there before fit begins.
        weakref.finalize(self, backend().repair().undo)
        self._repaired_for: weakref.ref[keras.Model] | None = None

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Refuses: two of one directory would take each other's checkpoints for their own."""
        raise TypeError(
            "Expected each fit to be given a PreemptionCallback of its own. Received: a copy, as KerasTuner makes of "
            "its callbacks for each trial. Make one with a directory for each trial in HyperModel.fit: see "
            '"Several fits" in docs/guarantees.md.'
        )

    def set_model(self, model: keras.Model) -> None:
        """Keeps Keras repaired for as long as the model lives: it may be evaluated after its fit."""
        super().set_model(model)
        if self._repaired_for is None or self._repaired_for() is not model:
            self._repaired_for = weakref.ref(model)
            weakref.finalize(model, backend().repair().undo)

    # -- Hooks of fit. The hot ones add one and test a flag; nothing else while nothing happens. -------

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Agrees with the other workers on a checkpoint and resumes from it."""
        last = _Last(self)
        self._turn = Turn(self._store, self._staging_dir)
        self._supervision = Supervision(self._turn, self._termination, self._schedule, self._retention)
        # Whatever ends fit ends what was started for it, also an exception, of which no hook is told:
        # only fit's own list of callbacks holds `last`.
        self._on_abandon = weakref.finalize(last, Supervision.abandon, self._supervision)
        self._supervision.begin(self.model, first=self, last=last)
        self._runtime = self._supervision.runtime

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """A boundary; the first of a resumed fit hands the callbacks their state back."""
        self._epoch = epoch
        if self._supervision is not None and self._runtime is not None:
            self._supervision.session.before_epoch()
            self._runtime.entered += 1
            self._boundary("epoch", 0)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """A boundary."""
        runtime = self._runtime
        if runtime is not None:
            runtime.entered += 1
            if runtime.attention or runtime.entered >= runtime.due:
                self._boundary("train", batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the logs: a resumed epoch without a step left needs them."""
        if self._supervision is not None:
            self._supervision.session.logs = logs

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The other callbacks end the epoch after this one: what they take is part of the grace period."""
        self._epoch_ended = time.monotonic()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """A boundary, if this validation belongs to the fit."""
        if self._supervision is not None and self._runtime is not None:
            self._supervision.before_validation(self._epoch)
            self._runtime.entered += 1
            if self._runtime.attention:
                self._boundary("validation", 0)
            self._test_began = time.monotonic()

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """A boundary, if this validation belongs to the fit."""
        runtime = self._runtime
        if runtime is not None:
            if batch == 0:
                runtime.pace.paused(time.monotonic() - self._test_began)
            runtime.entered += 1
            if runtime.attention:
                self._boundary("validation", batch)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Nothing; spares the detour through the base class."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Training is over and saved: gives back what was taken."""
        if self._supervision is not None:
            self._supervision.session.nothing_to_train()
            self._supervision.end()
            self._supervision = self._runtime = None
            self._on_abandon.detach()

    def _boundary(self, phase: str, batch: int) -> None:
        if self._supervision is not None:
            self._supervision.boundary(self._epoch, phase, batch)

    # -- Called by the last callback of the fit --------------------------------------------------------

    def after_train_end(self) -> None:
        """The other callbacks have ended training too: the next fit is another one."""
        if self._turn is not None:
            self._turn.ended(steps_done(self.model))
            self._turn = None

    def after_epoch_begin(self) -> None:
        """The other callbacks have begun the epoch."""
        if self._supervision is not None:
            self._supervision.session.after_epoch_begin()

    def after_test_begin(self) -> None:
        """The other callbacks have begun the validation."""
        if self._supervision is not None:
            self._supervision.session.validation_began()

    def after_epoch_end(self, epoch: int) -> None:
        """The other callbacks have ended the epoch; if it was the last, training is over."""
        supervision = self._supervision
        if supervision is None:
            return
        supervision.bar.ended()
        supervision.runtime.pace.paused(time.monotonic() - self._epoch_ended)
        if epoch + 1 >= supervision.session.epochs or self.model.stop_training:
            supervision.finish(epoch + 1)


class _Last(keras.callbacks.Callback):
    """Stands at the end of fit's callbacks, after History: it sees what all the others have left.

    The end of training is agreed on here and not in on_train_end, because Keras overwrites weights with
    their averages, and callbacks restore their best weights, in between: a finished run that is started
    again does these once more, from the same state, with the same result.
    """

    def __init__(self, first: PreemptionCallback) -> None:
        super().__init__()
        self._first = first

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See `PreemptionCallback.after_epoch_begin`."""
        self._first.after_epoch_begin()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """See `PreemptionCallback.after_test_begin`."""
        self._first.after_test_begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See `PreemptionCallback.after_epoch_end`."""
        self._first.after_epoch_end(epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """See `PreemptionCallback.after_train_end`."""
        self._first.after_train_end()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Nothing; spares the detour through the base class."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Nothing; spares the detour through the base class."""

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Nothing; spares the detour through the base class."""

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Nothing; spares the detour through the base class."""


def _is_local_path(value: object) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    path = os.fspath(value)
    return isinstance(path, str) and path.strip() != "" and "://" not in path and "\0" not in path
