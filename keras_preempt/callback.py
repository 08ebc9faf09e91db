"""`PreemptionCallback`: one line in `model.fit`, and the training survives the loss of its machines."""

from __future__ import annotations

import datetime
import inspect
import logging
import os
import weakref
from typing import Any, NoReturn

import keras

from keras_preempt.backend.keras import batches_asked
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.staging import check_staging_dir
from keras_preempt.drilled import hooks
from keras_preempt.notices.termination import TerminationConfig, check_no_arguments
from keras_preempt.process import log
from keras_preempt.report.delivery import OnEvent, check_on_event
from keras_preempt.state import input_size
from keras_preempt.training.leave.propagation import tell_uncaught_loss
from keras_preempt.training.run.fit import Fit
from keras_preempt.training.save.memory_options import memory_options
from keras_preempt.training.save.requests import interval
from keras_preempt.training.save.resuming import ResumedFrom
from keras_preempt.training.save.schedule import schedule_of
from keras_preempt.training.start.beginning import start
from keras_preempt.training.start.options import Options
from keras_preempt.training.start.reading_together import reads_together

logger = logging.getLogger("keras_preempt")


class PreemptionCallback(keras.callbacks.Callback):
    """Saves one checkpoint when the job is about to be preempted, and resumes from it bit-identically.

    When any worker gets a termination signal, all workers stop at the same step, write one checkpoint and
    exit with status 75, or the platform's own. Started again, the same script continues at the next batch as if
    nothing had happened: weights, optimizer, random state, data order, metrics, History and the state of Keras' own
    callbacks. See docs/guarantees.md for what is guaranteed.

    Args:
        directory: Where to keep the checkpoints of this run: a path that all workers share, or a place
            in a bucket: ``gs://bucket/prefix``, ``s3://bucket/prefix`` or ``az://container/prefix``. One directory is
            for one run of one model.
        termination: How notices arrive and how the job ends; None for SIGTERM, what the platform announces, and the
            platform's exit status.
        save_every: When to save in the background while nothing happens: a number of training steps (batches),
            "epoch", or a time such as "10min" or a `datetime.timedelta`. None: never.
        max_to_keep: How many of the newest checkpoints to keep; at least 1.
        keep_every: Which others to keep for good: the first one in every so many training steps, in every "epoch",
            or in every interval such as "1h" or a `datetime.timedelta`. None: no others.
        staging_dir: An existing directory on a local disk, for files on their way to or from a bucket; each worker
            makes one of its own in it, and removes it when fit ends. None: the system's temporary directory.
            Not used if the checkpoints are not in a bucket.
        save_on_request: How often worker 0 looks for a request by ``keras-preempt save``: a time such as "30s" or a
            `datetime.timedelta`. "auto": every 5 s in a directory, every minute in a bucket. None: never.
        input_state: How much of the input's iterator a checkpoint may hold. "auto": up to 64 MiB and 50,000 elements
            of shuffle buffers. A number: up to so many bytes, where a large shuffle buffer is to be saved rather than
            filled again after a restart; the save takes that much longer, and memory that much more. "replay":
            nothing; the batches that were used are drawn again. See "Input pipelines" in
            docs/how-it-works.md.
        memory_every: When to save in the memory of the machines while nothing happens, so that a restart after one of
            them was lost without notice continues from there: "auto", as often as costs at most 1 % of training; a
            time such as "10s" or a `datetime.timedelta`; a number of training steps. None: never. See
            docs/no-notice.md.
        memory_dir: A directory on a tmpfs of each machine, in which those saves have a folder for this user and run.
        memory_copies: How many other workers keep the part of each worker: so many machines may be lost at once.
        on_event: Called with each `keras_preempt.Event` of this worker, in a thread of its own and in their order. What
            it raises is logged once and changes nothing; training never waits for it, the end of `fit` for at most
            5 s. See docs/events.md.

    Attributes:
        resumed: Where this fit has resumed from, a `ResumedFrom`; None for a new run, and before the first fit. It is
            known from the callback's own `on_train_begin` on: in that of callbacks listed after this one, in all later
            hooks of all callbacks, and when `fit` has returned. The same on all workers.

    Raises:
        ValueError: An argument is invalid.
        ImportError: Keras runs on another backend than TensorFlow, JAX or torch, or it is too old.

    Example:
        >>> model.fit(dataset, epochs=10, callbacks=[PreemptionCallback("gs://bucket/runs/1")])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        termination: TerminationConfig | None = None,
        save_every: int | str | datetime.timedelta | None = None,
        max_to_keep: int = 2,
        keep_every: int | str | datetime.timedelta | None = None,
        staging_dir: str | os.PathLike[str] | None = None,
        save_on_request: str | datetime.timedelta | None = "auto",
        input_state: int | str = "auto",
        memory_every: int | str | datetime.timedelta | None = None,
        memory_dir: str | os.PathLike[str] = machine_memory.DEFAULT,
        memory_copies: int = 1,
        on_event: OnEvent | None = None,
    ) -> None:
        given = dict(locals())
        super().__init__()
        log.show()
        backend()  # Refuses, before anything else is done, a backend on which this package does not work.
        tell_uncaught_loss()
        check_staging_dir(staging_dir)
        retention = Retention(max_to_keep, keep_every)
        if termination is not None and not isinstance(termination, TerminationConfig):
            raise ValueError(f"Expected termination to be a TerminationConfig. Received: {termination!r}.")
        store = open_store(hooks.directory_for(directory), staging_dir=staging_dir)
        config = termination or TerminationConfig()
        check_no_arguments("save_fn", config.save_fn)
        look = interval(save_on_request, store)
        check_on_event(on_event)
        together = reads_together(store)
        self._options = Options(
            store,
            staging_dir,
            config,
            schedule_of(save_every),
            retention,
            together,
            input_size.limit_of(input_state),
            memory_options(memory_every, memory_dir, memory_copies),
            look,
            on_event,
            hooks.for_fit,
        )
        _, *options = inspect.signature(PreemptionCallback).parameters.values()
        shown = [f"{each.name}={given[each.name]!r}" for each in options if given[each.name] != each.default]
        self._shown = ", ".join([repr(store.url), *shown])
        # Whether Keras may call the hooks at the end of a step in another thread, which waits for the logs. Otherwise
        # it waits for each step before it begins the next one.
        self.async_safe = backend().runs_ahead
        self._fit: Fit | None = None
        self.resumed: ResumedFrom | None = None
        # fit builds the model before it calls a callback, so the repair must be there before fit begins.
        weakref.finalize(self, backend().repair())
        weakref.finalize(self, batches_asked.watch())  # For it asks a PyDataset for batches before it does.
        self._repaired_for: weakref.ref[keras.Model] | None = None

    def __repr__(self) -> str:
        """Returns the call that makes one like this, without what is left out."""
        return f"PreemptionCallback({self._shown})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses to be copied or pickled: two of one directory would take each other's checkpoints for their own."""
        raise TypeError(
            "Expected each fit to be given a PreemptionCallback of its own. Received: a copy, as `copy` and `pickle` "
            "make one, and KerasTuner of its callbacks for each trial. Make a callback with a directory of its own "
            "where fit is called; with KerasTuner, that is HyperModel.fit: see "
            '"Several fits" in docs/guarantees.md.'
        )

    def set_model(self, model: keras.Model) -> None:
        """Keeps Keras repaired for as long as the model lives, since it may be evaluated after its fit."""
        super().set_model(model)
        if self._repaired_for is None or self._repaired_for() is not model:
            self._repaired_for = weakref.ref(model)
            weakref.finalize(model, backend().repair())

    # -- Hooks of fit ----------------------------------------------------------------------------------

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Agrees with the other workers on a checkpoint and resumes from it."""
        self._fit = self.resumed = None
        last = _Last()
        self._fit = last.fit = start(self.model, self, last, self._options)
        self.resumed = self._fit.resumed

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """A boundary; the first of a resumed fit hands the callbacks their state back."""
        if self._fit is not None:
            self._fit.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the step inline, which saves one call per step."""
        fit = self._fit
        if fit is not None:
            runtime = fit.runtime
            runtime.entered = runtime.count[0] = entered = runtime.entered + 1
            if runtime.attention or entered >= runtime.due:
                fit.step_begins(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the logs, and counts the step."""
        fit = self._fit
        if fit is not None:
            fit.logs = logs
            fit.step_ended(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The other callbacks end the epoch after this one."""
        if self._fit is not None:
            self._fit.epoch_ends()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """A boundary, if this validation belongs to the fit."""
        if self._fit is not None:
            self._fit.validation_begins()

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """A boundary, if this validation belongs to the fit."""
        if self._fit is not None:
            self._fit.validation_step_begins(batch)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """No-op: faster than the base class."""

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """The validation is over, if it belongs to the fit."""
        if self._fit is not None:
            self._fit.validation_ends()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Nothing left to train: cleans up."""
        if self._fit is not None:
            self._fit.training_ends()
            self._fit = None


class _Last(keras.callbacks.Callback):
    """The last of fit's callbacks, after History: it sees what all the others have left.

    The end of training is agreed on here and not in on_train_end, because Keras overwrites weights with
    their averages, and callbacks restore their best weights, in between: a finished run that is started
    again does these once more, from the same state, with the same result.
    """

    fit: Fit

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.session.after_epoch_begin()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.fit.session.validation_began()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.fit.epoch_has_ended(epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.fit.training_has_ended()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """No-op: faster than the base class."""

    on_train_batch_end = on_test_batch_begin = on_test_batch_end = on_train_batch_begin
