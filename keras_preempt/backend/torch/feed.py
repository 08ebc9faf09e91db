"""The data of a fit on torch: the iterators of a `DataLoader`, which Keras makes of whatever was passed to fit.

Keras draws a batch before it calls the hooks of its step. So at the boundary before a step the generators have moved
on already, and a restart, which draws that batch again, needs their states from before: they are taken before each
draw. Each iterator of a `DataLoader` also draws a seed when it is made.

Verified with Keras 3.15.1 and torch 2.6.0 to 2.15.0.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.torch import loaders
from keras_preempt.backend.torch.random_states import GeneratorStates, apply_own

logger = logging.getLogger("keras_preempt")


class TorchFeed(InputFeed):
    """The iterators that Keras' `TorchEpochIterator` makes; see `InputFeed`."""

    draws_early = True

    def __init__(self, epoch_iterator: Any) -> None:
        super().__init__(epoch_iterator)
        adapter = epoch_iterator.data_adapter
        passed = getattr(adapter, "_dataloader", None)  # The user's; None for other data.
        self._is_array = type(adapter).__name__ == "ArrayDataAdapter"
        self._passed_loader = passed
        self._own: list[torch.Generator] = []
        self.knows(passed)
        self._tells_place = loaders.tells_place(passed)
        self._everything = not self._is_array and (passed is None or not loaders.is_of_tensors(passed))
        # Whether states are taken before each draw, as for the training data; the last ones taken.
        self.records = False
        self.before_draw: GeneratorStates | None = None
        self.iterate = lambda: LiveIterator(self).begin()

    @property
    def dataset(self) -> Any:
        """See `InputFeed.dataset`: the pipeline, or else Keras' adapter of the data."""
        return self._source.data_adapter if self.undistributed is None else self.undistributed

    @property
    def sample(self) -> str:
        return self.sample_of(getattr(self._source.data_adapter, "_inputs", None) if self._is_array else None)

    @property
    def global_batch(self) -> int | None:
        return self.batch_size

    @property
    def is_indexed(self) -> bool:
        """See `InputFeed.is_indexed`: all that can be at a position without the iterators before it."""
        return self._is_array or self._passed_loader is not None

    @property
    def redraws(self) -> bool:
        if self._is_array or self._passed_loader is None or self.by_state:
            return False
        return self._replays or not loaders.is_read_by_index(self._passed_loader)

    @property
    def by_state(self) -> bool:
        return self._tells_place and not self._replays

    @property
    def _replays(self) -> bool:
        return self.state_limit is not None and bool(self.state_limit.replays)

    @property
    def in_workers(self) -> Sequence[Any]:
        loader = self._passed_loader
        if loader is None or loader.num_workers == 0 or self.redraws or not self._everything:
            return ()
        read = "__iter__" if self.by_state else "__getitem__"
        return [getattr(loader.dataset, read, None), loader.collate_fn]

    @property
    def is_coded(self) -> bool:
        return not self._is_array and (self._passed_loader is None or self._everything)

    def new_at(self, batch: int, order: Any = None) -> Any:
        iterate, self.iterate = self.iterate, lambda: LiveIterator(self, batch, order)
        try:
            return super().new()
        finally:
            self.iterate = iterate

    def _make_again(self, grain: GrainIterators) -> bool:
        adapter = self._source.data_adapter
        dataset = adapter._dataset
        # What Keras' loader iterates over.
        adapter._dataset = grain.around(lambda: dataset)()
        return True

    # -- Random generators -----------------------------------------------------------------------------

    def snapshot(self, *, everything: bool = False) -> GeneratorStates:
        return GeneratorStates.take(self._own, everything=everything or self._everything)

    def apply(self, snapshot: GeneratorStates) -> None:
        snapshot.apply(self._own)

    def random_before(self) -> tuple[Any, Any, Mapping[str, Any]] | None:
        before = self.before_draw
        return None if before is None else (before.python, before.numpy, before.devices)

    def knows(self, data: Any) -> None:
        """Counts the generators of a loader, such as that of the validation data, among those of this data."""
        if isinstance(data, DataLoader):
            self._own += [
                each for each in loaders.generators_of(data) if all(each is not o for o in self._own)
            ]

    def generators(self, *, pending: bool) -> Any:
        before = self.before_draw if pending else None
        return list((before or self.snapshot()).own)

    @contextlib.contextmanager
    def kept_states(self) -> Iterator[None]:
        now = self.snapshot(everything=True)
        try:
            yield
        finally:
            self.apply(now)

    def set_generators(self, saved: Any) -> None:
        apply_own(saved, self._own)

    @property
    def keeps_workers(self) -> bool:
        return loaders.keeps_workers(self._passed_loader)

    def begin_with(self, draws: Sequence[int]) -> None:
        """See `InputFeed.begin_with`: persistent workers have given what was drawn before."""
        super().begin_with(draws)
        loader = self._passed_loader
        self.had_workers = loader is not None and loader.persistent_workers

    def let_go(self) -> None:
        """See `InputFeed.let_go`: the worker processes of an iterator end when nobody holds it any more.

        Persistent ones end when nobody holds their loader. Collected in a cycle of objects, it cannot tell them to end.
        """
        source, self.live, self._passed_loader = self._source, None, None
        for name in ("_get_iterator", "reset"):  # Those of this feed.
            vars(source).pop(name, None)
        self._dataset_of = lambda: None
        self.epoch_iterator = self._source = weakref.proxy(source)

    # -- The sequence of iterators ---------------------------------------------------------------------

    def loader(self) -> Any:
        """Returns the loader that the next iterator is made of."""
        return self._dataset_of()

    def start_workers(self, loader: Any) -> None:
        """Starts the persistent workers that a loader had in the earlier process; the generators stay as they are."""
        if not self.had_workers or loaders.keeps_workers(loader):
            return
        now = self.snapshot()
        loaders.start_workers(loader)
        self.apply(now)


_END = object()


class LiveIterator:
    """An iterator over the data of a feed; if it was given a position, it is made at its first draw and begins there.

    `order` has the states from which an earlier process has made it: what a callback sets for an epoch, such as
    `sampler.set_epoch(epoch)`, is set once Keras draws from it. Where the loader tells where it is, that is in it, too.
    """

    def __init__(self, feed: TorchFeed, skip: int = 0, order: Mapping[str, Any] | None = None) -> None:
        self._feed = feed
        self._skip = skip
        self._batches: Iterator[Any] | None = None
        saved = order or {}
        self._made, self._began = (
            GeneratorStates.from_plain(saved[name]) if saved.get(name) is not None else None
            for name in ("made", "began")
        )
        self._present: Any = None  # The states from before the first draw here.
        self._given = 0  # How many batches of the epoch were drawn.
        self._state: tuple[int, Any] | None = saved.get("state")  # Where the loader was after so many.
        # Whether it was an iterator of workers that were there before.
        self._again = bool(saved.get("again"))

    @property
    def order(self) -> dict[str, Any] | None:
        """The states that it was made from, as plain data; None if they are not known."""
        if self._made is None:
            return None
        began = None if self._began is None else self._began.to_plain()
        found = {"made": self._made.to_plain(), "began": began, "again": self._again}
        return found if self._state is None else {**found, "state": self._state}

    def begin(self) -> LiveIterator:
        """Makes the iterator now, as Keras does."""
        feed = self._feed
        loader = feed.loader()
        feed.start_workers(loader)
        if feed.records and feed.is_indexed:
            self._again = loaders.keeps_workers(loader)
            self._made = feed.snapshot()
        self._batches = loaders.begun(loader)
        return self

    def __iter__(self) -> LiveIterator:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._begin_again()
        assert self._batches is not None
        feed = self._feed
        if feed.records:
            feed.before_draw = now = feed.snapshot()
            if self._began is None:
                self._began = now
            # Before the first one, a dataset may tell the end of the epoch before.
            if feed.by_state and self._given:
                state = loaders.state_of(feed.loader())
                self._state = None if state is None else (self._given, state)
        batch = next(self._batches)
        self._given += 1
        return batch

    def _begin_again(self) -> None:
        made, feed = self._made, self._feed
        if made is None:
            self.begin()
            return
        loader, now = feed.loader(), feed.snapshot()
        self._present, self._given = now, self._skip
        if self._state is not None and feed.by_state:
            given, state = self._state
            self._batches = loaders.begun_from(loader, state, self._skip - given)
            feed.apply(now)
            return
        with_workers = loader.num_workers > 0
        feed.apply(made)
        if with_workers and loader.persistent_workers and not loaders.keeps_workers(loader):
            loaders.start_workers(loader)
            if self._again:
                feed.apply(made)

        def at_beginning(draw: Callable[[], Any]) -> None:
            if with_workers or self._began is None:  # It was drawn when it was made.
                draw()
                return
            present = feed.snapshot()
            feed.apply(self._began)
            draw()
            feed.apply(present)

        if feed.redraws or feed.by_state:
            self._batches = loaders.begun(loader)
            at_beginning(self._draw_again)
        else:
            self._batches = loaders.make_again(loader, self._skip, at_beginning)
        feed.apply(now)

    def _draw_again(self) -> None:
        assert self._batches is not None
        before = self._feed.snapshot()
        for number in range(self._skip):
            if next(self._batches, _END) is _END:
                raise ValueError(
                    f"Expected data of at least {self._skip} batches, as it was when the checkpoint was written. "
                    f"Received: data that ended after {number}. Train on the same data, or in another directory."
                )
        if not self._feed.snapshot().is_like(before) and not self._feed.snapshot().is_like(self._present):
            logger.warning(
                "Perhaps NOT exact: the training data draws from a global random state, and so does something else "
                "while it trains. Give the data a torch.Generator of its own, or another one for each sample."
            )
