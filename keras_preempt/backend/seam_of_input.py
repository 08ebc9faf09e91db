"""What the rest of this package needs of a backend's input: pipelines, their iterators and their shuffles.

Part of `keras_preempt.backend.seam`, where a backend is chosen.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class Does(enum.Enum):
    """What an operation does that a restart may not repeat."""

    ORDER = "gives the order of a dataset"
    DRAW = "draws random numbers from a state of its own"
    GENERATE = "draws random numbers from a generator, whose state is a variable"
    CHANGE = "changes a variable or a table"
    PYTHON = "runs Python code"


@dataclass(frozen=True)
class Ingredient:
    """A dataset of an input pipeline, or an operation of a function in it.

    Attributes:
        name: The backend's name for it, such as "ShuffleDataset", "RandomUniform" or "EagerPyFunc".
        where: The user's line that made it, such as "augment (train.py:34)", or the name of the function that it is
            part of; empty for a dataset of the pipeline itself.
        does: What it does that a restart may not repeat; None for nothing of the kind.
        seeded: Whether it has a seed; None if it takes none.
        ordered: Whether it hands out its elements in a fixed order.
        parallel: Whether the function is called for several elements at a time.
        code: The Python function that it runs, as the backend keeps it; None if it runs none, or that is unknown.
    """

    name: str
    where: str
    does: Does | None
    seeded: bool | None
    ordered: bool
    parallel: bool = False
    code: Any = None


class TapState(Protocol):
    """The state of the iterator of a `Tap`."""

    @property
    def drawn(self) -> int | None:
        """How many elements were drawn; None at their end."""

    @property
    def size(self) -> int:
        """Its bytes, about."""

    def keeps_every_shuffle(self, pipelines: Iterable[Any]) -> bool:
        """Whether it holds the reshuffling of the epochs to come, of every shuffle of these pipelines."""

    def to_bytes(self) -> bytes:
        """Returns its bytes, for `Tap.restore`."""


class Tap(Protocol):
    """Makes the iterators of a distributed dataset, each over one of this process' part, whose state can be saved.

    The elements of that part are counted; `per_batch` of them make a batch.
    """

    @property
    def per_batch(self) -> int:
        """How many elements one batch takes."""

    @property
    def shard(self) -> tuple[int, int]:
        """Which part of the dataset this process draws, and of how many."""

    def begin(self) -> None:
        """Makes the iterator below the next one of the strategy."""

    def state(self) -> TapState | None:
        """Returns the state; None if it cannot be saved. Can be called while the strategy draws."""

    def restore(self, state: bytes, number: int) -> None:
        """Puts the iterator that was begun at a state.

        Args:
            state: The bytes of one.
            number: How many elements had been drawn by then.

        Raises:
            ValueError: The state does not fit the pipeline.
        """

    def skip(self) -> bool:
        """Draws one element of the iterator that was begun, and drops it; returns False at the end."""

    def iterate(self) -> Any:
        """Makes the strategy's iterator over the one that was begun."""


class Datasets(Protocol):
    """What can be seen of an input pipeline, and the state of its iterators."""

    def pipelines_of(self, distributed: Any) -> list[Any]:
        """Returns the pipelines of what Keras iterates over; empty if they are unknown."""

    def ingredients(self, dataset: Any) -> Iterator[Ingredient]:
        """Yields everything that a pipeline is made of, including the operations of its functions."""

    def iterator_state(self, iterator: Any) -> bytes | None:
        """Returns the position of an iterator; None if it cannot be saved."""

    def never_has_state(self, dataset: Any) -> bool:
        """Whether `iterator_state` is known to be None for every iterator of a pipeline."""

    def keeps_every_shuffle(self, state: bytes, dataset: Any) -> bool:
        """Whether an iterator's state holds the reshuffling of the epochs to come."""

    def restore_iterator(self, iterator: Any, state: bytes) -> None:
        """Puts a new iterator at a position. Raises ValueError if the state does not fit the pipeline."""

    def reshuffles_while_drawn(self, dataset: Any) -> bool:
        """Whether drawing batches, and not only making an iterator, advances the reshuffling of a pipeline."""

    def shuffle_buffers(self, dataset: Any) -> Iterator[tuple[int, int | None]]:
        """Yields for each shuffle how many elements it holds, and the bytes of one; None if unknown."""

    def held_elements(self, dataset: Any) -> Iterator[tuple[int | None, int | None]]:
        """Yields what else an iterator's state holds that may be large: elements of a cache, and the bytes of one."""

    def iterators(self) -> list[Any]:
        """Returns all iterators of this process of which it may take long to drop one."""

    def hidden_sources(self) -> list[str]:
        """Returns what functions of this process draw from states that nobody can save, in words."""


class SeedGenerator(Protocol):
    """Where a shuffle takes the orders of its iterators from."""

    def count(self) -> int:
        """Returns how far it has come."""

    def advance_to(self, count: int) -> None:
        """Sets how far it has come, forwards or backwards."""


class Reshuffling(Protocol):
    """How far the shuffles of a pipeline have come."""

    def sources(self, dataset: Any) -> Iterator[tuple[Any, bool]]:
        """Yields each shuffle, and whether drawing does not advance it after an iterator's first element."""

    def reshuffling_of(self, dataset: Any) -> SeedGenerator | None:
        """Returns the seed generator of a shuffle; None if it cannot be read."""

    def seeds_of(self, shuffle: Any) -> tuple[int, int]:
        """Returns the seed of a shuffle, and the global one of when it was made; both 0 for none."""

    def keeps_an_order(self, dataset: Any) -> bool:
        """Whether later iterators of a pipeline depend on what was drawn from earlier ones."""

    def watch_iterators(self, shuffles: Collection[int], told: Callable[[], None]) -> Callable[[], None]:
        """Calls `told` before an iterator over certain shuffles (by `id`) is made; returns what ends that."""
