"""Restored values whose variables do not exist yet, and their handover to those variables.

A model may make its variables only while it trains. Its restored values are handed over by name as the variables come
into being. Until then they stand in for them, so a checkpoint that is written in between is as whole as the one that
was restored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import by_replica
from keras_preempt.process.words import some
from keras_preempt.state import sharding

GROUPS = ("model/", "optimizer/", "metrics/", "attributes/", "step/")
"""How the names of variables begin. Everything else in a checkpoint is not a variable."""

_COUNTED = re.compile(r"(.*?)(?:#[0-9]+)?\Z", re.DOTALL)
_SHOWN = 10


class UnclaimedValues(ValueError):
    """A checkpoint holds values that no variable of the model has claimed."""


class Waiting:
    """Stands in for a variable that does not exist yet, whose name in the checkpoint is `path`.

    `values` is its value; of one that can differ between replicas, that of each replica of this worker.
    """

    aggregation = "none"

    def __init__(self, path: str, values: list[Array]) -> None:
        self.path = self.name = path
        self.values = values
        self.shape = values[0].shape
        self.dtype = values[0].dtype.name


def find_waiting(
    whole: Mapping[str, Array], local: Mapping[str, Array], known: Iterable[str]
) -> tuple[dict[str, Waiting], dict[str, Waiting]]:
    """Returns the restored values that have no variable among the `known` ones, by name: mirrored and local ones."""
    known = set(known)
    alike = {name: [value] for name, value in whole.items()}
    missing, own = (
        {
            name: Waiting(name, values)
            for name, values in kind.items()
            if name.startswith(GROUPS) and name not in known
        }
        for kind in (alike, by_replica(local))
    )
    return missing, own


def base(name: str) -> str:
    """Returns a name without the number that tells variables of one path apart."""
    match = _COUNTED.match(name)
    assert match is not None
    return match[1]


class Handover:
    """The restored values of one model that wait for their variables, and are handed over as these come into being.

    Variables of one path are told apart by their order in the model, which is known only when all of them exist. Until
    then none of them is given its value, and using one of them is an error.

    Args:
        components: Returns the parts of a variable on this worker.

    Attributes:
        mirrored: Stand-ins by name, ...
        local: ... and those for variables that can differ between replicas.
    """

    def __init__(self, components: Callable[[Any], tuple[Any, ...]]) -> None:
        self._components = components
        self.mirrored: dict[str, Waiting] = {}
        self.local: dict[str, Waiting] = {}
        self._stop_watching: Callable[[], None] | None = None
        self._used_early: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of the values that wait."""
        return [*self.mirrored, *self.local]

    def keep(self, whole: Mapping[str, Array], local: Mapping[str, Array], real: Mapping[str, Any]) -> bool:
        """Keeps those of restored values that have no variable among the `real` ones; returns whether there are any."""
        missing, own = find_waiting(whole, local, real)
        counted = Counter(map(base, (*missing, *own)))
        # With some of a path missing, the order of all of it is unknown.
        settled = [name for name in real if base(name) not in counted]
        missing, own = find_waiting(whole, local, settled)
        self.mirrored.update(missing)
        self.local.update(own)
        return bool(missing or own)

    def watch(self, real: Iterable[Any], look: Callable[[Any], bool]) -> None:
        """Has `look` called with each variable that comes into being, before it is used; see `watch_first_use`."""
        if self._stop_watching is None:
            self._stop_watching = backend().watch_first_use(real, look)

    def hand_over(self, real: Mapping[str, Any], used: Any = None) -> bool:
        """Assigns what waits to the `real` variables that exist by now; returns whether there were any.

        `used` is a variable that is about to be used for the first time. Raises `UnclaimedValues` if a variable is not
        the one that was saved, or was used before that could be told.
        """
        waiting = {**self.mirrored, **self.local}
        awaited = Counter(map(base, waiting))
        come = Counter(base(name) for name in waiting if name in real)
        ready = [name for name in waiting if name in real and come[base(name)] == awaited[base(name)]]
        for name in ready:
            if name in self._used_early:
                raise UnclaimedValues(
                    "Expected variables that are made while a model trains eagerly to have names of their own. "
                    f"Received: several called {base(name)}, of which one was used before the others were there, so "
                    "that it could not be told which restored value is its own. Give their layers or metrics different "
                    "names, or build the model before fit."
                )
            self._assign(name, waiting[name], real[name])
            self.mirrored.pop(name, None)
            self.local.pop(name, None)
        self._used_early |= {
            name for name, each in real.items() if each is used and name in waiting and name not in ready
        }
        if not self.names:
            self.end()
        return bool(ready)

    def drop(self, group: str) -> None:
        """Gives up the values of a group: their variables will begin as they are made."""
        for kind in (self.mirrored, self.local):
            for name in [name for name in kind if name.startswith(group)]:
                del kind[name]
        if not self.names:
            self.end()

    def _assign(self, name: str, waiting: Waiting, variable: Any) -> None:
        if sharding.is_divided(variable) and len(waiting.values) == 1:
            sharding.assign_whole(name, variable, waiting.values[0])
            return
        components = self._components(variable)
        several = len(waiting.values) > 1
        fits = tuple(waiting.shape) == tuple(variable.shape) and waiting.dtype == variable.dtype
        if not (fits or variable.dtype == "string") or (several and len(waiting.values) != len(components)):
            raise UnclaimedValues(
                f"Expected the variable {name} to be {waiting.dtype}{list(waiting.shape)}, as the checkpoint has it. "
                f"Received: {variable.dtype}{list(variable.shape)}. Train with the program that has saved it, or in "
                "another directory."
            )
        for number, component in enumerate(components):
            backend().variables.assign([component], waiting.values[number if several else 0])

    def end(self) -> None:
        """Stops watching. Can be called twice."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None


def unclaimed(names: Iterable[str]) -> UnclaimedValues:
    listed = sorted(names)
    return UnclaimedValues(
        "Expected every value of the checkpoint to be claimed by a variable that exists after a step of training. "
        f"Received: {len(listed)} that none has claimed: {some(listed, _SHOWN)}. Train with the program that has "
        "saved them, or in another directory. Nothing was saved."
    )


def not_regrouped(names: Iterable[str]) -> UnclaimedValues:
    """Returns the error for values that differ between replicas, where there are others now, and no variable yet."""
    return UnclaimedValues(
        "Expected the variables that can differ between replicas to exist before fit, to continue on other workers or "
        "replicas than those that saved. Received: a model that makes "
        f"{some(sorted(names), _SHOWN)} only while it trains. Build the model before fit, train without "
        "run_eagerly=True, or continue on as many workers and replicas as before."
    )
