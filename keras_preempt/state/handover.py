"""Hands restored values over to variables that come into being only while a model trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_preempt.backend.keras.first_use import FirstUse
from keras_preempt.backend.tensorflow import host_values
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state.waiting import Waiting, base, find_waiting, misfit, used_before


class Handover:
    """The restored values of one model that wait for their variables.

    Variables of one path are told apart by their order in the model, which is known when all of them are there: until
    then none of them is handed its value, and one that is used before is an error.

    Args:
        components: Returns the variables of each replica of this worker behind a variable.

    Attributes:
        mirrored: Stand-ins for mirrored variables, by name.
        local: Stand-ins for those that can differ between replicas, by name.
    """

    def __init__(self, components: Callable[[Any], tuple[Any, ...]]) -> None:
        self._components = components
        self.mirrored: dict[str, Waiting] = {}
        self.local: dict[str, Waiting] = {}
        self._first_use: FirstUse | None = None
        self._used_early: set[str] = set()

    @property
    def names(self) -> list[str]:
        """What waits."""
        return [*self.mirrored, *self.local]

    def keep(
        self, mirrored: Mapping[str, Array], local: Mapping[str, Array], real: Mapping[str, Any]
    ) -> bool:
        """Keeps those of restored values that have no variable yet; returns whether there are any.

        Args:
            mirrored: The values of mirrored variables, by name.
            local: Those of local variables, as "name@replica".
            real: The variables that exist, by name.
        """
        missing, own = find_waiting(mirrored, local, real)
        counted = Counter(map(base, (*missing, *own)))
        # With some of a path missing, the order of all of it is unknown.
        settled = [name for name in real if base(name) not in counted]
        missing, own = find_waiting(mirrored, local, settled)
        self.mirrored.update(missing)
        self.local.update(own)
        return bool(missing or own)

    def watch(self, real: Iterable[Any], look: Callable[[Any], bool]) -> None:
        """Has `look` called with each variable that comes into being, before it is used.

        Args:
            real: The variables that exist; those whose values wait are told too.
            look: See `FirstUse`.
        """
        if self._first_use is None:
            self._first_use = FirstUse(real, look)

    def hand_over(self, real: Mapping[str, Any], used: Any = None) -> bool:
        """Assigns what waits to the variables that exist by now; returns whether there were any.

        Args:
            real: The variables that exist, by name.
            used: A variable that is about to be used for the first time.

        Raises:
            UnclaimedValues: A variable is not the one that was saved, or was used before that could be told.
        """
        waiting = {**self.mirrored, **self.local}
        awaited = Counter(map(base, waiting))
        come = Counter(base(name) for name in waiting if name in real)
        ready = [name for name in waiting if name in real and come[base(name)] == awaited[base(name)]]
        for name in ready:
            if name in self._used_early:
                raise used_before(name)
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
        """Gives up the values whose names begin with a group's: their variables will begin as they are made."""
        for kind in (self.mirrored, self.local):
            for name in [name for name in kind if name.startswith(group)]:
                del kind[name]
        if not self.names:
            self.end()

    def _assign(self, name: str, waiting: Waiting, variable: Any) -> None:
        components = self._components(variable)
        several = len(waiting.values) > 1
        fits = tuple(waiting.shape) == tuple(variable.shape) and waiting.dtype == variable.dtype
        if not (fits or variable.dtype == "string") or (several and len(waiting.values) != len(components)):
            raise misfit(name, waiting, variable.shape, variable.dtype)
        for number, component in enumerate(components):
            host_values.assign([component], waiting.values[number if several else 0])

    def end(self) -> None:
        """Watches no more. Can be called twice."""
        if self._first_use is not None:
            self._first_use.stop()
            self._first_use = None
