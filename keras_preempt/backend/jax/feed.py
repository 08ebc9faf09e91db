"""The data of a fit on JAX, as Keras hands it to the process: a generator over whatever was passed.

Keras makes its generators before they are needed, also some that are never drawn from; what they iterate over is made
at their first draw. So an iterator counts here from its first draw on.

Verified with Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt.backend import pipelines
from keras_preempt.backend.jax import array_batches
from keras_preempt.backend.jax.rows import rows_of
from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.input_feed import InputFeed


class JaxFeed(InputFeed):
    """The iterators that Keras' `JAXEpochIterator` makes; see `InputFeed`.

    Attributes:
        stub: Makes the next step of Keras run nothing; see `running_fit.JaxFit.stub`.
    """

    def __init__(self, epoch_iterator: Any) -> None:
        super().__init__(epoch_iterator)
        self.iterate = lambda: LiveIterator(self)
        self.stub: Callable[[], None] = lambda: None
        self._handed: Any = None

    @property
    def dataset(self) -> Any:
        """See `InputFeed.dataset`: the pipeline, or else Keras' adapter of the data."""
        dataset = self._dataset_passed
        return dataset if pipelines.pipelines_of(dataset) else self._source.data_adapter

    @property
    def pipelines(self) -> list[Any]:
        """See `InputFeed.pipelines`."""
        return pipelines.pipelines_of(self.dataset)

    @property
    def is_shared(self) -> bool:
        """See `InputFeed.is_shared`: each process draws its own batches."""
        return False

    @property
    def undistributed(self) -> Any:
        """See `InputFeed.undistributed`."""
        dataset = self._dataset_passed
        return dataset if pipelines.pipelines_of(dataset) else None

    @property
    def sample(self) -> str:
        """See `InputFeed.sample`."""
        adapter = self._source.data_adapter
        known: Any = None
        if self.undistributed is not None:
            known = self.undistributed.element_spec
        elif self.is_indexed:
            known = array_batches.inputs_of(adapter)
        elif hasattr(adapter, "_output_signature") and adapter._output_signature is not None:
            known = adapter._output_signature
        leaves = [leaf for leaf in keras.tree.flatten(known) if hasattr(leaf, "shape")]
        alike = {(_dtype_of(leaf), tuple(leaf.shape[1:])) for leaf in leaves}
        return str([(name, list(shape)) for name, shape in sorted(alike, key=repr)])

    @property
    def global_batch(self) -> int | None:
        """See `InputFeed.global_batch`."""
        own, shares = self.batch_size, rows_of(keras.distribution.distribution()).shares
        return None if own is None or shares is None else own * shares

    @property
    def is_indexed(self) -> bool:
        """See `InputFeed.is_indexed`."""
        return array_batches.is_of_arrays(self._source.data_adapter)

    @property
    def order(self) -> Any:
        """See `InputFeed.order`."""
        return self.live.order if isinstance(self.live, LiveIterator) and self.is_indexed else None

    def new_at(self, batch: int, order: Any = None) -> Any:
        """See `InputFeed.new_at`."""
        live = self.new()
        live.skip, live.order = batch, order
        return live

    def _make_again(self, grain: GrainIterators) -> bool:
        adapter = self._source.data_adapter
        vars(adapter)["get_jax_iterator"] = grain.around(adapter.get_jax_iterator)
        return True

    def of_validation(self, model: Any, data: Any, steps: int | None) -> InputFeed | None:
        """See `InputFeed.of_validation`."""
        if not pipelines.pipelines_of(data):
            return None
        epoch_iterator = type(self._source)(
            x=data, steps_per_execution=model.steps_per_execution, steps_per_epoch=steps, shuffle=False
        )
        return JaxFeed(epoch_iterator)

    # -- The sequence of iterators -----------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Returns the next iterator, which is made when it is first drawn from. Called by Keras."""
        if self.iterators:
            self._forgotten = max(self._forgotten, int(self._source._steps_seen))
        prepared, self._prepared = self._prepared, None
        self._handed = OnFirstDraw(self) if prepared is None else prepared
        return self._handed

    def position(self, *, pending: bool) -> dict[str, Any]:
        """See `InputFeed.position`."""
        if pending and isinstance(self._handed, OnFirstDraw):
            self._handed.start()  # What the step that has not begun would do at once.
        position = super().position(pending=pending)
        if not pending and not self._goes_on_from_live:
            position["current"] = False
            position["batches"] = self.draws[-1] if self.iterators else 0
        return position

    @property
    def _goes_on_from_live(self) -> bool:
        current = self._source._current_iterator
        return current is not None and getattr(current, "started", True)

    @property
    def goes_on(self) -> bool:
        """See `InputFeed.goes_on`."""
        return self._goes_on_from_live and self._source.steps_per_epoch is not None

    def resume(self, position: Mapping[str, Any], live: Any, *, batch: int | None) -> None:
        """See `InputFeed.resume`."""
        super().resume(position, live, batch=batch)
        self._handed = live

    def _replace_next_epoch(self, skip: int | None) -> None:
        if skip == 0:
            return
        super()._replace_next_epoch(skip)
        source = self._source
        rest = source._enumerate_iterator

        def with_a_stub() -> Iterator[Any]:
            # Keras reads the logs of the epoch's last step without asking whether there was one.
            self.stub()
            yield 0, 0, iter(())
            yield from rest()

        source._enumerate_iterator = with_a_stub

    # -- What an iterator draws from -----------------------------------------------------------------------

    def begin(self, live: LiveIterator) -> tuple[Iterator[Any], Any]:
        """Returns Keras' iterator over a live one, and its first batch.

        Raises:
            StopIteration: There is none.
        """
        with self._drawn_from(live):  # Keras asks its adapter now, or at the first draw.
            batches = iter(self._batches())
            return batches, next(batches)

    def _batches(self) -> Any:
        if keras.distribution.distribution() is not None or jax.default_backend() == "cpu":
            return self._dataset_of()
        # Keras would draw one batch ahead of training there, and the state of the iterator would be one batch ahead.
        # JAX transfers a batch while the device computes on the one before, as it does every operation.
        adapter = self._source.data_adapter
        return (keras.tree.map_structure(jax.device_put, batch) for batch in adapter.get_jax_iterator())

    @contextlib.contextmanager
    def _drawn_from(self, live: LiveIterator) -> Iterator[None]:
        adapter = self._source.data_adapter
        if live.source is not None:
            dataset, adapter._dataset = adapter._dataset, _Given(live.source)
            try:
                yield
            finally:
                adapter._dataset = dataset
        elif self.is_indexed:
            if live.order is None:
                live.order = np.random.get_state()
                yield
            else:
                with array_batches.beginning_at(adapter, live.skip, live.order):
                    yield
        else:
            yield

    def source(self) -> Any:
        """Makes the iterator of the pipeline that was passed; None if it is no pipeline."""
        dataset = self.undistributed
        return None if dataset is None else iter(dataset)


class LiveIterator:
    """An iterator over the data, whose source can be put at a position before its first draw.

    Args:
        feed: The feed that makes it.

    Attributes:
        source: The iterator of the pipeline; None if the data is none.
        skip: How many batches of arrays are left out.
        order: NumPy's random state from which the order of arrays is drawn, or was; None for the present one.
    """

    def __init__(self, feed: JaxFeed) -> None:
        self._feed = feed
        self._batches: Iterator[Any] | None = None
        self.source = feed.source()
        self.skip = 0
        self.order: Any = None

    def __iter__(self) -> LiveIterator:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches, first = self._feed.begin(self)
            return first
        return next(self._batches)


class OnFirstDraw:
    """What Keras is given in place of an iterator, which is made at the first draw.

    Args:
        feed: The feed that makes it.
    """

    def __init__(self, feed: JaxFeed) -> None:
        self._feed = feed
        self._live: LiveIterator | None = None
        self._failed: Exception | None = None

    @property
    def started(self) -> bool:
        """Whether the iterator is made."""
        return self._live is not None

    def start(self) -> None:
        """Makes the iterator, if it is not; the user's data is asked for it once."""
        if self._failed is not None:
            raise self._failed
        if self._live is None:
            try:
                self._live = self._feed.new()
            except Exception as error:
                self._failed = error
                raise

    def __iter__(self) -> OnFirstDraw:
        return self

    def __next__(self) -> Any:
        self.start()
        assert self._live is not None
        return next(self._live)


class _Given:
    """Takes the place of a dataset of which an iterator is there already."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


def _dtype_of(leaf: Any) -> str:
    # A table of pandas has a dtype for each column.
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf[:1]).dtype
    return str(getattr(dtype, "name", dtype))
