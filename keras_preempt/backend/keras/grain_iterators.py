"""The iterators that Keras makes of Grain data, and the states by which a restart continues them.

A Grain iterator returns its state, a few numbers, and a new one continues from there. Keras hands the iterator to its
backend, which draws ahead of training, so the state at the moment of a save is one of some batches later. Therefore
states are taken as batches are drawn, each with its number, and a save takes the newest one at or before the batch that
training has reached. A restart draws the batches between again. Slow states are taken less often, so that they cost at
most one percent of the time.

Verified with Keras 3.11.3 to 3.15.1 and Grain 0.2.18.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("keras_preempt")

_SHARE = 0.01
"""Taking a state may cost at most this part of the time between two of them."""


@dataclass(frozen=True)
class GrainState:
    """How many batches an iterator has given, and what its get_state() has returned then; None for a new one."""

    batches: int
    state: Any = None


class GrainIterators:
    """The iterators that a backend makes of the data of one fit, one after the other.

    Attributes:
        trained: Returns how many batches of the live iterator no save will ask for again.
        prepared: The next iterator, as `begin_at` has made it; None for one that begins at the beginning.
        live: The iterator made last; None from when the backend is about to make one until it is drawn from.
    """

    def __init__(self) -> None:
        self.trained: Callable[[], int] = lambda: 0
        self._make: Callable[[], Iterable[Any]] | None = None
        self.prepared: _Recorded | None = None
        self.live: _Recorded | None = None

    def around(self, make: Callable[[], Iterable[Any]]) -> Callable[[], Iterable[Any]]:
        """Returns what a backend calls for its iterators in place of `make`, which converts the Grain data for it."""
        self._make = make
        return lambda: self

    def state_at(self, batches: int) -> GrainState | None:
        """Returns a state of the live iterator, at or before a number of batches; None if there is none."""
        if batches == 0:
            return GrainState(0)
        recorded = self.live or self.prepared
        return None if recorded is None else recorded.state_at(batches)

    def begin_at(self, state: GrainState, batches: int, drawn: Callable[[], Any]) -> int:
        """Has the backend's next iterator begin at a batch; returns how many batches there were before it.

        These are fewer than asked for if the data has ended. `drawn` is called after each batch that is drawn again and
        dropped. If the state does not fit the data, Grain may raise anything; ValueError if it ends up elsewhere.
        """
        assert self._make is not None
        iterator: Any = iter(self._make())
        if state.state is not None:
            iterator.set_state(copy.deepcopy(state.state))
            if (found := iterator.get_state()) != state.state:
                raise ValueError(
                    f"Expected a Grain iterator at {state.state!r:.200}. Received: {found!r:.200}."
                )
        recorded = _Recorded(iterator, state, self)
        for _ in range(batches - state.batches):
            if next(recorded, _END) is _END:
                break
            drawn()
        self.prepared = recorded
        return recorded.batches

    def __iter__(self) -> Iterator[Any]:
        """Returns the next iterator. Called by the backend, in another thread."""
        assert self._make is not None
        recorded, self.prepared = self.prepared, None
        self.live = recorded or _Recorded(iter(self._make()), GrainState(0), self)
        return self.live


_END = object()


class _Recorded:
    """An iterator of Grain data that keeps states of where it was."""

    def __init__(self, iterator: Any, state: GrainState, iterators: GrainIterators) -> None:
        self.batches = state.batches
        self._iterator = iterator
        self._iterators = iterators
        self._lock = threading.Lock()
        self._states = deque([state])
        self._next = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self.batches += 1
        if time.monotonic() < self._next:
            return batch
        began = time.monotonic()
        try:
            state = GrainState(self.batches, copy.deepcopy(self._iterator.get_state()))
        except Exception as error:  # An iterator of the user's own without a state trains as well.
            logger.warning(
                "The Grain iterator has no state that can be taken (%r): after a preemption its batches are drawn "
                "again.",
                error,
            )
            self._next = float("inf")
            return batch
        trained = self._iterators.trained()
        with self._lock:
            self._states.append(state)
            while len(self._states) > 1 and self._states[1].batches <= trained:
                self._states.popleft()
        now = time.monotonic()
        self._next = now + (now - began) / _SHARE
        return batch

    def state_at(self, batches: int) -> GrainState | None:
        with self._lock:
            found = [state for state in self._states if state.batches <= batches]
        return found[-1] if found else None
