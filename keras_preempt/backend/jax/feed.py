"""The data of a fit on JAX: the generators that Keras makes over what was passed to fit.

Keras makes generators early, also some that are never drawn from, and what they iterate over at their first draw. So an
iterator counts here from its first draw.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt.backend.jax import array_batches
from keras_preempt.backend.jax.place import rows_of
from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.names import STEPS_AT_FIRST


class JaxFeed(InputFeed):
    """The iterators that Keras' `JAXEpochIterator` makes; see `InputFeed`. Each process draws its own batches."""

    def __init__(self, epoch_iterator: Any) -> None:
        super().__init__(epoch_iterator)
        self.iterate = lambda: LiveIterator(self)
        # Makes Keras' next step run nothing: `running_fit.JaxFit.stub`.
        self.stub: Callable[[], None] = lambda: None
        self._handed: Any = None

    @property
    def dataset(self) -> Any:
        """See `InputFeed.dataset`: the pipeline, or else Keras' adapter of the data."""
        return self._source.data_adapter if self.undistributed is None else self.undistributed

    @property
    def sample(self) -> str:
        adapter = self._source.data_adapter
        known: Any = None
        if self.undistributed is not None:
            known = self.undistributed.element_spec
        elif self.is_indexed:
            known = getattr(adapter, "_inputs", None)
        elif hasattr(adapter, "_output_signature") and adapter._output_signature is not None:
            known = adapter._output_signature
        return self.sample_of(known)

    @property
    def global_batch(self) -> int | None:
        own, shares = self.batch_size, rows_of(keras.distribution.distribution()).shares
        return None if own is None or shares is None else own * shares

    @property
    def is_indexed(self) -> bool:
        return array_batches.is_of_arrays(self._source.data_adapter)

    def new_at(self, batch: int, order: Any = None) -> Any:
        live = self.new()
        if batch:
            live.skip, live.order = batch, order
        return live

    def _make_again(self, grain: GrainIterators) -> bool:
        adapter = self._source.data_adapter
        vars(adapter)["get_jax_iterator"] = grain.around(adapter.get_jax_iterator)
        return True

    # -- The sequence of iterators -----------------------------------------------------------------------

    def __iter__(self) -> Any:
        if self.iterators:
            self._forgotten = max(self._forgotten, int(self._source._steps_seen))
        prepared, self._prepared = self._prepared, None
        self._handed = OnFirstDraw(self) if prepared is None else prepared
        return self._handed

    def position(self, *, pending: bool) -> dict[str, Any]:
        if pending and isinstance(self._handed, OnFirstDraw):
            self._handed.start()  # As the step that has not begun would do.
        position = super().position(pending=pending)
        if not pending and not self._goes_on_from_live:
            position["current"] = False
            position["batches"] = self.draws[-1] if self.iterators else 0
        return position

    @property
    def _goes_on_from_live(self) -> bool:
        current = self._source._current_iterator
        return current is not None and getattr(current, "live", current) is not None

    @property
    def goes_on(self) -> bool:
        return self._goes_on_from_live and self._source.steps_per_epoch is not None

    def resume(self, position: Mapping[str, Any], live: Any, *, batch: int | None) -> None:
        super().resume(position, live, batch=batch)
        self._handed = live

    def shorten_next_epoch(self, skip: int | None) -> None:
        if skip == 0:
            return
        super().shorten_next_epoch(skip)
        source = self._source
        rest = source._enumerate_iterator

        def with_a_stub() -> Iterator[Any]:
            # Keras reads the logs of the epoch's last step without checking that there was one.
            self.stub()
            yield *STEPS_AT_FIRST, iter(())
            yield from rest()

        source._enumerate_iterator = with_a_stub

    # -- What an iterator draws from -----------------------------------------------------------------------

    def begin(self, live: LiveIterator) -> tuple[Iterator[Any], Any]:
        """Returns Keras' iterator over a live one, and its first batch. Raises StopIteration if there is none."""
        adapter = self._source.data_adapter
        with self._drawn_from(live):  # Keras asks its adapter now, or at the first draw.
            if keras.distribution.distribution() is not None:
                batches = iter(self._dataset_of())
            else:
                # Keras would draw one batch ahead of training, before 3.15 also on CPUs, and before 3.14 two; and the
                # state of the iterator would be as far ahead.
                batches = iter(adapter.get_jax_iterator())
                if jax.default_backend() != "cpu":
                    # JAX transfers a batch while the device computes on the one before, as it does every operation.
                    drawn, put = batches, jax.device_put
                    batches = (keras.tree.map_structure(put, batch) for batch in drawn)
            return batches, next(batches)

    @contextlib.contextmanager
    def _drawn_from(self, live: LiveIterator) -> Iterator[None]:
        adapter = self._source.data_adapter
        if live.source is not None:
            dataset, adapter._dataset = adapter._dataset, live.source
            try:
                yield
            finally:
                adapter._dataset = dataset
        elif self.is_indexed and live.order is not None:
            with array_batches.beginning_at(adapter, live.skip, live.order):
                yield
        else:
            if self.is_indexed:
                live.order = np.random.get_state()
            yield


class LiveIterator:
    """An iterator over the data of a feed, whose source can be put at a position before its first draw."""

    def __init__(self, feed: JaxFeed) -> None:
        self._feed = feed
        self._batches: Iterator[Any] | None = None
        dataset = feed.undistributed
        self.source: Any = None if dataset is None else iter(dataset)  # The iterator of a pipeline.
        self.skip = 0  # How many batches of arrays are left out.
        # NumPy's random state that the order of arrays is drawn from; None for the present one.
        self.order: Any = None

    def __iter__(self) -> LiveIterator:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches, first = self._feed.begin(self)
            return first
        return next(self._batches)


class OnFirstDraw:
    """What Keras is given in place of an iterator of a feed; `live` is that, once it is made at the first draw."""

    def __init__(self, feed: JaxFeed) -> None:
        self._feed = feed
        self.live: LiveIterator | None = None
        self._failed: Exception | None = None

    def start(self) -> LiveIterator:
        """Makes the iterator on the first call: the user's data is asked for it once, even if that fails."""
        if self._failed is not None:
            raise self._failed
        if self.live is None:
            try:
                self.live = self._feed.new()
            except Exception as error:
                self._failed = error
                raise
        return self.live

    def __iter__(self) -> OnFirstDraw:
        return self

    def __next__(self) -> Any:
        return next(self.start())
