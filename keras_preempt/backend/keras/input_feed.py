"""The iterators that Keras makes of the data of a fit, counted, so that a restart can make the same ones again.

Keras has no way to begin an epoch at a later step. Its epoch iterator looks up its methods on the instance, where they
can be replaced.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import abc
import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_preempt.backend import pipelines
from keras_preempt.backend.keras import py_batches
from keras_preempt.backend.keras.batches_asked import batches_of
from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.names import KerasInternalsError

_iterators_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""By dataset, how many iterators the fits of this process have made of it; several fits may share one."""


class InputFeed(abc.ABC):
    """The iterators that one epoch iterator makes, counted, so that their sequence can be made again.

    Each iterator that Keras makes advances the reshuffling of the dataset, even one that it throws away. A position
    is therefore the number of iterators made and the number of batches drawn from the last of them.

    Raises KerasInternalsError if the epoch iterator, of a fit or of an evaluation inside it, lacks one of `NEEDS`.
    """

    NEEDS: ClassVar[tuple[str, ...]] = (
        "_enumerate_iterator",
        "_get_iterator",
        "_current_iterator",
        "_steps_seen",
        "_num_batches",
        "steps_per_epoch",
        "steps_per_execution",
        "catch_stop_iteration",
        "reset",
    )
    """The attributes of the epoch iterator that are relied upon."""

    def __init__(self, epoch_iterator: Any) -> None:
        missing = [name for name in self.NEEDS if not hasattr(epoch_iterator, name)]
        if missing:
            raise KerasInternalsError(
                f"epoch iterators with {', '.join(self.NEEDS)}", f"none called {', '.join(missing)}"
            )
        self.epoch_iterator = self._source = epoch_iterator
        adapter = epoch_iterator.data_adapter
        self.steps_per_execution = int(epoch_iterator.steps_per_execution)
        # The class of a `keras.utils.PyDataset` with hooks of its own for the ends of an epoch; else empty.
        self.changes_itself = changes_itself(getattr(adapter, "py_dataset", None))
        self.is_generator = type(adapter).__name__ == "GeneratorDataAdapter"
        self.asked = batches_of(adapter)
        # The dataset that was passed to fit, before the strategy distributed it; None for arrays and the like.
        self.passed = getattr(adapter, "_dataset", None)
        known = any(each is self.passed for each in pipelines.pipelines_of(self.passed))
        self.undistributed: Any = self.passed if known else None
        self.made_before = _iterators_made.get(self.undistributed, 0) if known else 0
        # How many batches were dropped that Keras' workers had fetched to build the model.
        self.dropped = py_batches.forget_fetched(adapter)
        # The iterator made last, how many were made, and how one is made.
        self.live: Any = None
        self.iterators = 0
        self.making = False
        self.iterate: Callable[[], Any] = lambda: iter(self._dataset_of())
        self._dataset_of = epoch_iterator._get_iterator
        self._prepared: Any = None
        self._drawn: list[int] = []
        self._forgotten = 0
        # Called before each iterator is made, for `noted`, and with it before it is drawn from, for `untouched`.
        self.note: Callable[[], Any] = lambda: None
        self.noted: list[Any] = []
        self.look: Callable[[Any], Any] = lambda iterator: None
        self.untouched: Any = None
        # What `keras_preempt.state` keeps: how large a saved state of an iterator may be, snapshots of the last one or
        # why there are none, as the end of "since ...", and the beginning of the epoch of a PyDataset.
        self.state_limit: Any = None
        self.snapshots: Any = None
        self.why_replayed = ""
        self.at_epoch: Any = None
        self.grain: GrainIterators | None = None  # See `record_grain`.
        self.had_workers = False  # What `keeps_workers` was when the restored checkpoint was written.
        epoch_iterator._get_iterator = lambda: self
        reset = epoch_iterator.reset

        def note_and_reset() -> None:
            self._forgotten = max(self._forgotten, int(epoch_iterator._steps_seen))
            reset()

        epoch_iterator.reset = note_and_reset

    @property
    @abc.abstractmethod
    def dataset(self) -> Any:
        """What Keras iterates over, as the strategy distributes it."""

    @property
    def pipelines(self) -> list[Any]:
        """The pipelines that it comes from, before a strategy has changed them; empty if they are unknown."""
        return pipelines.pipelines_of(self.dataset)

    @property
    def is_shared(self) -> bool:
        """Whether a strategy divides the batches among several replicas."""
        return False

    @property
    @abc.abstractmethod
    def sample(self) -> str:
        """What one sample looks like: types and shapes without the batch, however it is cut for replicas."""

    def sample_of(self, batch: Any) -> str:
        """Returns the types and shapes of what a batch is made of, in the form of `sample`."""
        leaves = [leaf for leaf in keras.tree.flatten(batch) if hasattr(leaf, "shape")]
        # A table of pandas has a dtype for each column.
        dtypes = [leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf[:1]).dtype for leaf in leaves]
        alike = {
            (str(getattr(dtype, "name", dtype)), tuple(leaf.shape[1:]))
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        }
        return str([(name, list(shape)) for name, shape in sorted(alike, key=repr)])

    @property
    @abc.abstractmethod
    def global_batch(self) -> int | None:
        """How many samples a full batch of all replicas holds; None if that is unknown."""

    @property
    def is_indexed(self) -> bool:
        """Whether the input is arrays or alike, of which the first batches can be left out: see `new_at`.

        An iterator of such an input depends on no other one.
        """
        return False

    @property
    def is_coded(self) -> bool:
        """Whether Python code of the user's makes the batches, or may, where no pipeline shows it."""
        return not self.pipelines and not self.is_indexed

    draws_early: ClassVar[bool] = False
    """Whether Keras draws a batch before it calls the hooks of its step: a state of an iterator is one batch ahead."""

    @property
    def in_workers(self) -> Sequence[Any]:
        """The user's functions that processes run which begin anew, without the batches before, after a restart."""
        return ()

    @property
    def redraws(self) -> bool:
        """Whether the first batches of an input that is indexed are drawn nevertheless, of its last iterator."""
        return False

    @property
    def by_state(self) -> bool:
        """Whether an input that is indexed has none of its first batches drawn, but tells and is told where it is."""
        return False

    def kept_states(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block within which iterators may be made that leave no trace in a global random state."""
        return contextlib.nullcontext()

    def random_before(self) -> tuple[Any, Any, Mapping[str, Any]] | None:
        """Returns the random states from before the pending batch was drawn; None if it is not drawn yet.

        They are Python's, NumPy's and the backend's; None in place of one that drawing it did not change.
        """
        return None

    def generators(self, *, pending: bool) -> Any:
        """Returns the states of random generators that the data of the fit has for itself, as plain data, if any.

        `pending`: those from before the pending batch was drawn.
        """
        return None

    @property
    def keeps_workers(self) -> bool:
        """Whether processes that make the batches go on from one iterator to the next, and have begun."""
        return False

    def set_generators(self, saved: Any) -> None:
        """Sets these generators to states that `generators` has returned."""
        raise NotImplementedError

    @property
    def order(self) -> Any:
        """The random state from which the order of the live iterator was drawn; None if it depends on none."""
        return getattr(self.live, "order", None)

    def new_at(self, batch: int, order: Any = None) -> Any:
        """Makes the next iterator of an input that is indexed, without its first batches, in the given `order`."""
        raise NotImplementedError

    @property
    def last_batch(self) -> int | None:
        """How many samples the last batch of an epoch has; None if it is full, or if that is unknown."""
        with contextlib.suppress(AttributeError, NotImplementedError):
            return int(self._source.data_adapter.partial_batch_size or 0) or None
        return None

    def record_grain(self) -> None:
        """Keeps the states of Grain iterators from now on, if the input is Grain data."""
        if type(self._source.data_adapter).__name__ != "GrainDatasetAdapter":
            return
        grain = GrainIterators()
        # Weak: TensorFlow holds what it draws Python data from until the process ends, and would then wait for an
        # iterator of this feed that still draws.
        known = weakref.ref(self)

        def trained() -> int:
            feed = known()
            return 0 if feed is None else int(feed._source._steps_seen) - feed.steps_per_execution

        grain.trained = trained
        if self._make_again(grain):
            self.grain = grain

    def _make_again(self, grain: GrainIterators) -> bool:
        """Has Keras iterate over its Grain data through recorded iterators; returns whether that is known."""
        return False

    def of_validation(self, model: Any, data: Any, steps: int | None) -> InputFeed | None:
        """Returns a feed of `validation_data`, as an evaluation of so many steps makes it; None for other data."""
        if not any(each is data for each in pipelines.pipelines_of(data)):
            return None
        shared = hasattr(model, "distribute_strategy")  # On TensorFlow.
        epoch_iterator = type(self._source)(
            x=data,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
            **({"distribute_strategy": model.distribute_strategy} if shared else {}),
        )
        return type(self)(epoch_iterator)

    def let_go(self) -> None:
        """The fit is over: drops what is held of Keras' iterators, where that keeps processes of the data alive."""
        return

    def __iter__(self) -> Any:
        prepared, self._prepared = self._prepared, None
        return self.new() if prepared is None else prepared

    def new(self, dataset: Any = None) -> Any:
        """Makes the next iterator of the sequence: of `dataset`, by default of the whole input."""
        self._drawn = self.draws
        self._forgotten = 0
        self.noted.append(self.note())
        if self.grain is not None:
            self.grain.live = None
        self.making = True
        self.live = self.iterate() if dataset is None else iter(dataset)
        self.making = False
        self.iterators += 1
        self._count()
        self.untouched = self.look(self.live)
        return self.live

    def _count(self) -> None:
        if self.undistributed is not None:
            _iterators_made[self.undistributed] = self.made_before + self.iterators

    @property
    def length(self) -> int | None:
        """The number of batches that an iterator gives; None if unknown."""
        batches = self._source.data_adapter.num_batches
        return None if batches is None else int(batches)

    @property
    def py_dataset(self) -> Any:
        """The `keras.utils.PyDataset` that was passed to fit, if one was and each epoch goes through all of it."""
        dataset = getattr(self._source.data_adapter, "py_dataset", None)
        whole = self._source.steps_per_epoch is None and self._source.data_adapter.num_batches is not None
        return dataset if whole else None

    def begin_epoch_once(self, batch: int = 0) -> bool:
        """Begins an epoch of the input now, without its first batches, and not again when Keras begins it.

        Returns whether a `py_dataset` will leave these out; if not, they have to be drawn.
        """
        adapter = self._source.data_adapter
        # Workers are asked for batches as the epoch begins; without workers, Keras draws the order at the first batch.
        left_out = batch > 0 and py_batches.has_workers(adapter) and py_batches.leave_out(adapter, batch)
        adapter.on_epoch_begin()
        vars(adapter)["on_epoch_begin"] = lambda: vars(adapter).pop("on_epoch_begin", None)
        return left_out or (batch > 0 and py_batches.leave_out(adapter, batch))

    @property
    def batch_size(self) -> int | None:
        """How many samples a batch of all replicas holds; None if Keras does not know."""
        size = self._source.data_adapter.batch_size
        return None if size is None else int(size)

    @property
    def batches(self) -> int | None:
        """The number of batches in one epoch; None if Keras does not know."""
        steps = self._source.steps_per_epoch
        if steps is None:
            steps = self._source._num_batches
        return None if steps is None else int(steps)

    def position(self, *, pending: bool) -> dict[str, Any]:
        """Returns where the input stands; `pending` if Keras has already counted an execution that has not begun."""
        return {
            "iterators": self.iterators,
            "drawn_before": list(self._drawn),
            "batches": self._source._steps_seen - (self._source.steps_per_execution if pending else 0),
            "current": self._source._current_iterator is not None,
            "num_batches": self._source._num_batches,
            "made_before": self.made_before,
        }

    @property
    def draws(self) -> list[int]:
        """How many batches were drawn from each iterator that was made."""
        if not self.iterators:
            return []
        return [*self._drawn, max(self._forgotten, int(self._source._steps_seen))]

    def looked_at(self) -> None:
        """Records that Keras has drawn one batch to build the model, but has counted a whole execution."""
        self._forgotten -= self.steps_per_execution - 1

    def draws_after_next_look(self) -> list[int]:
        """Returns what `draws` will be after Keras has drawn a batch to build the model before its next evaluation."""
        source, draws = self._source, self.draws
        if source._current_iterator is None or source.steps_per_epoch is None:
            return [*draws, 1]
        return [*draws[:-1], draws[-1] + 1]

    def begin_with(self, draws: Sequence[int]) -> None:
        """Sets how many batches were drawn from each iterator that was made so far, which is at least one."""
        self.iterators = len(draws)
        *self._drawn, self._forgotten = draws

    @property
    def goes_on(self) -> bool:
        """Whether Keras would draw its next batch from `live` and not from a new iterator."""
        return self._source._current_iterator is not None and self._source.steps_per_epoch is not None

    def resume(self, position: Mapping[str, Any], live: Any, *, batch: int | None) -> None:
        """Makes the next epoch continue from a position.

        `live` is the last iterator of the sequence, advanced to the position; None if none is needed. `batch` is the
        step of the epoch to continue with; None if the epoch's training is over or has not begun.
        """
        source = self._source
        self.iterators = int(position["iterators"])
        self._count()
        self._drawn = [int(batches) for batches in position["drawn_before"]]
        self._forgotten = 0
        self.live = live
        source._num_batches = position["num_batches"]
        source._current_iterator = live if position["current"] else None
        source._steps_seen = int(position["batches"])
        if batch is None:
            return
        if source.steps_per_epoch is not None:
            source._steps_seen -= batch  # Counted again while the steps that were run are skipped.
        else:
            self._prepared = live
        self.shorten_next_epoch(batch // self.steps_per_execution)

    def shorten_next_epoch(self, skip: int | None) -> None:
        """Makes the next epoch leave out its first executions; with None, it yields no step."""
        source = self._source
        original = source._enumerate_iterator

        def once() -> Iterator[Any]:
            vars(source).pop("_enumerate_iterator", None)
            if skip is None:
                return
            steps = original()
            for _ in range(skip):
                next(steps)  # Hands out the iterator; draws nothing from it.
            yield from steps

        source._enumerate_iterator = once


def changes_itself(dataset: Any) -> str:
    """Returns the class of a `keras.utils.PyDataset` with hooks of its own for the ends of an epoch; empty if none."""
    kind = type(dataset)
    own = any(
        getattr(kind, name, None) not in (None, getattr(keras.utils.PyDataset, name, None))
        for name in ("on_epoch_begin", "on_epoch_end")
    )
    return kind.__name__ if own else ""
