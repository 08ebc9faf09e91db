"""How far the shuffles of a fit's data have come, whatever has made iterators of them.

A shuffle gives each new iterator another order, whatever makes it: the training, the validation on another part of the
same data, a callback that predicts, another fit. So what counts is not which iterators were made, but how far each
shuffle had come when the iterator was made that training continues with, and how far it has come now. Both are read,
saved, and set again after a restart; see `keras_preempt.backend.tensorflow.reshuffling`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from keras_preempt.backend import pipelines
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.component import Component, RestoreMoment, StoredState

logger = logging.getLogger("keras_preempt")

Counts = list[int]
"""How far each shuffle has come, in the order in which the pipelines have them."""


class Shuffles(Component):
    """All shuffles of what Keras iterates over in training, and of the `validation_data` that was passed to fit.

    Attributes:
        readable: Whether all of them can be read and set.
        shared: Whether training and validation share one.
        shared_while_drawn: Whether one that they share advances while batches are drawn.
        fragile: The ids of those of the training data that nothing else may advance while an iterator lasts.
    """

    def __init__(self, training: Any, validation: Any) -> None:
        trained, validated = _sources(training), _sources(validation)
        self._own = {**validated, **trained}
        copied = pipelines.is_copied(training)
        shuffles = [
            None if copied else pipelines.reshuffling_of(dataset) for dataset, _ in self._own.values()
        ]
        self._shuffles: list[pipelines.SeedGenerator] = [each for each in shuffles if each is not None]
        self.readable = len(self._shuffles) == len(shuffles)
        self.fragile = frozenset(
            key for key, (_, settled) in trained.items() if not settled or not self.readable
        )
        both = trained.keys() & validated.keys()
        self.shared = bool(both)
        self.shared_while_drawn = any(not (trained[key][1] and validated[key][1]) for key in both)
        self._settled = {
            number for number, key in enumerate(self._own) if key not in trained or trained[key][1]
        }

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        return {"shuffle_seeds": self.seeds()}

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is not RestoreMoment.BEGIN:
            self.go_to(saved.state.get("shuffles"), drawing=saved.drawing)
        elif saved.state.get("shuffle_seeds") not in (None, self.seeds()):
            logger.warning(
                "NOT exact: the shuffles of the data, or their seeds, differ from those of the checkpoint, so that the "
                "data comes in another order. Call keras.utils.set_random_seed right before the dataset is "
                "made: a seed of shuffle() counts together with the global one of the moment when the dataset is made."
            )

    def counts(self) -> Counts | None:
        """How far they have come; None if that cannot be read of all."""
        return [each.count() for each in self._shuffles] if self.readable else None

    def seeds(self) -> list[list[int]]:
        return [list(pipelines.seeds_of(dataset)) for dataset, _ in self._own.values()]

    def go_to(self, counts: Sequence[int] | None, *, drawing: bool = False) -> None:
        """Sets how far they have come; those that advance while training data is drawn not during that (`drawing`)."""
        if counts is None or len(counts) != len(self._shuffles):
            return
        for number, (each, count) in enumerate(zip(self._shuffles, counts, strict=True)):
            if not drawing or number in self._settled:
                each.advance_to(int(count))


def _sources(data: Any) -> dict[int, tuple[Any, bool]]:
    """Returns by id each shuffle, and whether it does not advance after an iterator's first element."""
    found: dict[int, tuple[Any, bool]] = {}
    for pipeline in pipelines.pipelines_of(data):
        for dataset, settled in pipelines.sources(pipeline):
            _, before = found.get(id(dataset), (dataset, True))
            found[id(dataset)] = (dataset, settled and before)
    return found
