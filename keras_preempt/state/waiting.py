"""Restored values whose variables do not exist yet, as those of a model that makes its variables while it trains.

They are handed over by name as the variables come into being. Until then they stand in for them, so that a checkpoint
which is written in between is as whole as the one that was restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import tensorflow as tf

from keras_preempt.checkpoint.tensors import Array

GROUPS = ("model/", "optimizer/", "metrics/", "attributes/", "step/")
"""How the names of variables begin; what else a checkpoint holds are no variables."""

_COUNTED = re.compile(r"(.*?)(?:#[0-9]+)?\Z", re.DOTALL)
_REPLICA = re.compile(r"(.*)@([0-9]+)\Z", re.DOTALL)
_SHOWN = 10


class UnclaimedValues(ValueError):
    """A checkpoint holds values that no variable of the model has claimed."""


class _Component:
    """The value that one replica's variable is to have."""

    device = ""
    dtype = tf.variant  # No type that is treated in a way of its own: what is held is as a checkpoint has it.

    def __init__(self, value: Array) -> None:
        self._value = value

    def read_value_no_copy(self) -> Array:
        return self._value


class Waiting:
    """Stands in for a variable that does not exist yet.

    Attributes:
        path: Its name in the checkpoint.
        values: Its value; of one that can differ between replicas, that of each replica of this worker.
        shape: Its shape.
        dtype: The name of its dtype.
        aggregation: What is done where replicas differ: nothing is known.
    """

    aggregation = "none"

    def __init__(self, path: str, values: list[Array]) -> None:
        self.path = self.name = path
        self.values = values
        self.shape = values[0].shape
        self.dtype = values[0].dtype.name

    @property
    def components(self) -> tuple[_Component, ...]:
        """What a strategy would return as the local results."""
        return tuple(map(_Component, self.values))


def find_waiting(
    mirrored: Mapping[str, Array], local: Mapping[str, Array], known: Iterable[str]
) -> tuple[dict[str, Waiting], dict[str, Waiting]]:
    """Returns the values that have no variable yet, mirrored and local ones, by name.

    Args:
        mirrored: The restored values of mirrored variables, by name.
        local: Those of local variables, as "name@replica".
        known: The names of the variables that exist.
    """
    known = set(known)
    alike = {
        name: Waiting(name, [value])
        for name, value in mirrored.items()
        if name.startswith(GROUPS) and name not in known
    }
    parts: dict[str, list[tuple[int, Array]]] = {}
    for key, value in local.items():
        match = _REPLICA.match(key)
        if match is not None and match[1].startswith(GROUPS) and match[1] not in known:
            parts.setdefault(match[1], []).append((int(match[2]), value))
    own = {
        name: Waiting(name, [value for _, value in sorted(values, key=lambda part: part[0])])
        for name, values in parts.items()
    }
    return alike, own


def base(name: str) -> str:
    """Returns a name without the number that tells variables of one path apart."""
    match = _COUNTED.match(name)
    assert match is not None
    return match[1]


def _shown(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")


def unclaimed(names: Iterable[str]) -> UnclaimedValues:
    """Returns the error for values that are still waiting after a step of training."""
    listed = sorted(names)
    return UnclaimedValues(
        "Expected every value of the checkpoint to be claimed by a variable that exists after a step of training. "
        f"Received: {len(listed)} that none has claimed: {_shown(listed)}. Train with the program that has "
        "saved them, or in another directory. Nothing was saved."
    )


def not_regrouped(names: Iterable[str]) -> UnclaimedValues:
    """Returns the error for values that differ between replicas, where there are others now, and no variable yet."""
    return UnclaimedValues(
        "Expected the variables that can differ between replicas to exist before fit, to continue on other workers or "
        f"replicas than those that saved. Received: a model that makes {_shown(names)} only while it trains. Build the "
        "model before fit, train without run_eagerly=True, or continue on as many workers and replicas as before."
    )


def used_before(name: str) -> UnclaimedValues:
    """Returns the error for a variable that was used before it was known which value is its own."""
    return UnclaimedValues(
        f"Expected variables that are made while a model trains eagerly to have names of their own. Received: several "
        f"called {base(name)}, of which one was used before the others were there, so that it could not be told which "
        "restored value is its own. Give their layers or metrics different names, or build the model before fit."
    )


def misfit(name: str, waiting: Waiting, shape: Iterable[int], dtype: str) -> UnclaimedValues:
    """Returns the error for a variable that is not what was saved."""
    return UnclaimedValues(
        f"Expected the variable {name} to be {waiting.dtype}{list(waiting.shape)}, as the checkpoint has it. Received: "
        f"{dtype}{list(shape)}. Train with the program that has saved it, or in another directory."
    )
