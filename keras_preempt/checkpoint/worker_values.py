"""Values as one worker holds them: captured, read back, and handed from one to the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box

_REPLICA = re.compile(r"(.*)@([0-9]{1,9})\Z", re.DOTALL)  # Python converts no number of thousands of digits.


def by_replica(local: Mapping[str, Array]) -> dict[str, list[Array]]:
    """Returns the values of each variable among a worker's own, in the order of its replicas."""
    found: dict[str, dict[int, Array]] = {}
    for key, value in local.items():
        if match := _REPLICA.match(key):
            found.setdefault(match[1], {})[int(match[2])] = value
    return {name: [values[index] for index in sorted(values)] for name, values in found.items()}


@dataclass(frozen=True)
class WorkerValues:
    """Values that one worker holds, by name.

    Attributes:
        whole: Those that all workers hold alike.
        local: Its own; those of variables as "name@replica".
        boxes: Of those that are divided among workers, the boxes that it holds.
    """

    whole: dict[str, Array] = field(default_factory=dict)
    local: dict[str, Array] = field(default_factory=dict)
    boxes: dict[str, dict[Box, Array]] = field(default_factory=dict)

    def get(self, box: Box) -> Array | None:
        """Returns the values of a box, sharing their memory; None if they are not among these."""
        if box.flat:
            return box.of(self.whole[box.tensor]) if box.tensor in self.whole else None
        return self.boxes.get(box.tensor, {}).get(box)

    def select(self, keep: Callable[[str, int], bool]) -> WorkerValues:
        """Returns those for whose name and bytes `keep` is true; they share their memory."""
        return WorkerValues(
            {name: value for name, value in self.whole.items() if keep(name, value.nbytes)},
            {name: value for name, value in self.local.items() if keep(name, value.nbytes)},
            {
                name: held
                for name, held in self.boxes.items()
                if keep(name, sum(value.nbytes for value in held.values()))
            },
        )

    def joined(self, more: WorkerValues) -> WorkerValues:
        """Returns both; a name that is in both has the value of `more`."""
        return WorkerValues(
            {**self.whole, **more.whole}, {**self.local, **more.local}, {**self.boxes, **more.boxes}
        )

    def copied(self) -> WorkerValues:
        return WorkerValues(
            {name: np.array(value) for name, value in self.whole.items()},
            {name: np.array(value) for name, value in self.local.items()},
            {
                name: {box: np.array(value) for box, value in held.items()}
                for name, held in self.boxes.items()
            },
        )

    def flat(self) -> dict[str, Array]:
        """Returns all of them under one name each, a box under the key by which a file has it."""
        boxes = {box.key: value for held in self.boxes.values() for box, value in held.items()}
        return {**self.whole, **self.local, **boxes}
