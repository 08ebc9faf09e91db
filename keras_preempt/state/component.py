"""Components: each kind of state that a fit has, how it is captured, and when it is restored.

A fit holds a list of them. They are captured in its order, and the variables last. The variables are restored first:
when fit begins, with the components in the same order, so that what may warn or fail comes before the input, which may
be drawn again for long; later with the components in the reverse one, so that what a later one does meanwhile (a
callback that draws random numbers) leaves no trace in an earlier one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.agreement.messages import PHASES, Position
from keras_preempt.backend.seam import backend
from keras_preempt.backend.versions import VERIFIED
from keras_preempt.checkpoint.documents import of_file
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.reader import Loaded
from keras_preempt.checkpoint.setup import SETUP
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues


class RestoreMoment(enum.Enum):
    """When a component is restored."""

    BEGIN = "as fit begins, and the workers have agreed on a checkpoint"
    EPOCH_BEGINS = "Keras has reset its metrics for the resumed epoch; no other callback has begun it yet"
    EPOCH_BEGUN = "the other callbacks have begun the resumed epoch, which had begun before"


@dataclass(frozen=True)
class StoredState:
    """A checkpoint, as one worker restores it.

    Attributes:
        position: Where training stood.
        state: What the components returned as JSON data.
        values: The variables and the arrays of the components; after `RestoreMoment.BEGIN` only what is restored again.
        all_go: Asks the other workers whether all of them can restore their input in a way, given in words.
    """

    position: Position
    state: Mapping[str, Any]
    values: WorkerValues
    all_go: Callable[[str], bool]

    @classmethod
    def of(cls, loaded: Loaded, all_go: Callable[[str], bool]) -> StoredState:
        where = loaded.manifest.position
        position = Position(int(where["epoch"]), where["phase"], int(where["batch"]), where["step"])
        return cls(position, dict(loaded.state), loaded.values, all_go)

    @property
    def arrays(self) -> Mapping[str, Array]:
        return {**self.values.whole, **self.values.local}

    @property
    def drawing(self) -> bool:
        """Whether the restored iterator of the training data is drawn from, perhaps ahead of training."""
        place = self.state["input"]["position"]
        return int(place["batches"]) > 0 and (self.position.phase == "train" or bool(place["current"]))


@dataclass(frozen=True)
class Content:
    """What a save holds beside the present values of the variables.

    Attributes:
        state: This worker's JSON state.
        values: Arrays beside it; a value under the name of a variable is saved in place of the present one.
    """

    state: Mapping[str, Any]
    values: WorkerValues = field(default_factory=WorkerValues)


class Component:
    """One kind of state of a fit.

    Attributes:
        later: How the names of those arrays begin that are restored again when an epoch begins.
        before_validation: Whether a save during a validation, which starts it over, holds the state from before it.
    """

    later: tuple[str, ...] = ()
    before_validation = True

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        """Returns fields of JSON data, with arrays added to `values`.

        In the phase "validation" one is about to begin.
        """
        raise NotImplementedError

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        raise NotImplementedError


_FIELDS = (
    *("random", "callbacks", "attributes", "trained", "logs", "epoch_logs"),
    *("evaluation_iterators", "evaluation_draws", "validated", "shuffles", "shuffle_seeds"),
    *("input", SETUP, "stopped"),
)
"""The order in which a part list has the fields of a worker's state; others come after them."""


def captured(components: Sequence[Component], phase: str) -> Content:
    values = WorkerValues()
    state: dict[str, Any] = {}
    for component in components:
        state.update(component.capture(phase, values))
    known = {name: state.pop(name) for name in _FIELDS if name in state}
    return Content({**known, **state}, values)


_LEAST = -(2**31)  # A count may be below 0 where Keras has counted ahead.


def checked(info: CheckpointInfo, loaded: Loaded, member: int) -> Loaded:
    """Returns what worker `member` has read of a checkpoint, if a fit on this backend can have written it.

    Checksums say that a file is what was written, not who wrote it. This is looked at before the workers agree on a
    checkpoint, so that they can pass it over. Raises CheckpointError if it was written on another backend, and
    CorruptCheckpoint if no fit can have written it.
    """
    here = backend().name.lower()
    if others := [name for name in VERIFIED if name in loaded.manifest.versions and name != here]:
        raise CheckpointError(
            f"it was saved on another backend of Keras, {others[0]}, and this program runs on {here}"
        )
    place = of_file(loaded.manifest.position, f"{info.directory}/{MANIFEST}")
    place.choice("phase", PHASES)
    for name in ("epoch", "batch", "step"):
        place.integer(name)
    states = {member if loaded.substituted_from is None else loaded.substituted_from: loaded.state}
    if loaded.workers:
        states = {own.member: own.state for own in loaded.workers}
    for whose, state in states.items():
        fields = of_file(state, f"{info.directory}/{part_file(whose)}")
        for name in ("callbacks", "random"):
            fields.mapping(name)
        fields.boolean("stopped")
        place = fields.inner("input").inner("position")
        for name in ("iterators", "batches"):
            place.integer(name, minimum=_LEAST)
        place.integers("drawn_before", minimum=_LEAST)
        place.boolean("current")
        if not place.null("num_batches"):
            place.integer("num_batches")
    return loaded
