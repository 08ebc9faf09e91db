"""The attributes of users' callbacks that have changed since the fit began: kept without `get_state` and `set_state`.

Attributes of numbers, texts, arrays, lists, dictionaries and the like are kept. A class says `keeps_state = False` if
they are not to be. Those that Keras owns are none of the user's; what reads a clock is kept apart, since no two runs
have the same.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras.callbacks import attributes_of_keras
from keras_preempt.backend.user_code import attributes, is_of_keras
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state.attribute_values import CONTAINERS, NotPlainError, Reader, Writer
from keras_preempt.state.callback_cure import cure
from keras_preempt.state.changed_names import clock_attributes

KEEPS = "keeps_state"
"""The attribute that is False on a class whose attributes are not to be kept."""

logger = logging.getLogger("keras_preempt")


class Attributes:
    """The attributes of the callbacks of one fit.

    Args:
        callbacks: Those whose attributes are kept, by names that are the same in each start.
    """

    def __init__(self, callbacks: Mapping[str, keras.callbacks.Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._clocks = {name: clock_attributes(each.__class__) for name, each in callbacks.items()}
        self._initial: dict[str, Any] | None = None
        self._initial_arrays: dict[str, Array] = {}
        self._there: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._told = {f"{name}.{attribute}" for name, attribute, _, _ in self._not_plain()}

    def begin(self) -> None:
        """Remembers the attributes as they are when the first epoch begins; only the first call does."""
        if self._initial is not None:
            return
        self._initial = {}
        writer = Writer(self._initial_arrays)
        for _, _, place, value in self._all():
            try:
                self._initial[place] = writer.write(value, place)
            except NotPlainError:
                self._others[place] = value
        self._there = writer.objects

    def capture(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Returns those that have changed as JSON data, with their arrays added to `arrays`."""
        found: dict[str, Any] = {}
        writer = Writer({}, self._there)
        for name, attribute, place, value in self._all():
            if self._others.get(place) is value and value is not None:
                continue
            before = set(writer.arrays)
            try:
                written = writer.write(value, place)
            except NotPlainError:
                continue
            own = {each: writer.arrays[each] for each in writer.arrays.keys() - before}
            if self._initial is not None and not self._is_initial(place, written, own):
                found.setdefault(name, {}).setdefault(self._group(name, attribute), {})[attribute] = written
                arrays.update(own)
        return found

    def restore(self, states: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Puts back what `capture` has returned, and all others to what they were when the first epoch began."""
        self.begin()
        assert self._initial is not None
        reader = Reader(self._initial_arrays, self._there)
        for name, attribute, place, _ in list(self._all()):
            if place in self._initial:
                self._set(name, attribute, reader.read(self._initial[place], place))
        reader = Reader(arrays, self._there)
        for name, state in states.items():
            for group, values in state.items():
                for attribute, written in values.items() if name in self._callbacks else ():
                    # Only what `capture` takes: another one could be the path of a file.
                    if self._is_kept(name, attribute):
                        place = f"callbacks/{name}/{group}/{attribute}"
                        self._set(name, attribute, reader.read(written, place))

    def not_plain(self, name: str) -> dict[str, tuple[Any, str]]:
        """Returns the attributes of a callback that cannot be kept: their values, and what kind of value is in them."""
        return {
            attribute: (value, kind) for owner, attribute, value, kind in self._not_plain() if owner == name
        }

    def newly_unkept(self) -> list[str]:
        """Returns in words the attributes that have come to hold what cannot be kept; each once."""
        found = []
        for name, attribute, value, kind in self._not_plain():
            if f"{name}.{attribute}" not in self._told and not is_same_in_each_start(value):
                self._told.add(f"{name}.{attribute}")
                found.append(f"{name}.{attribute} ({kind})")
        return found

    def tell_unkept(self, member: int) -> None:
        """Says on worker 0 which attributes have come to hold what cannot be kept; each once.

        Args:
            member: The number of this worker.
        """
        if new := [] if member else self.newly_unkept():
            what = f"{', '.join(new)} cannot be kept over a restart. {cure(new)}"
            logger.warning("Perhaps not exact after a preemption: %s.", what)

    def _not_plain(self) -> Iterator[tuple[str, str, Any, str]]:
        writer = Writer({})
        for name, attribute, place, value in self._all():
            try:
                writer.write(value, place)
            except NotPlainError as error:
                yield name, attribute, value, str(error)

    def is_kept(self, value: object) -> bool:
        """Whether an object is, or is in, an attribute that is kept."""
        writer = Writer({})
        for _, _, place, each in self._all():
            try:
                writer.write(each, place)
            except NotPlainError:
                continue
        return any(each is value for each in writer.objects.values())

    def _all(self) -> Iterator[tuple[str, str, str, Any]]:
        for name, callback in self._callbacks.items():
            for attribute, value in _values(callback).items():
                if self._is_kept(name, attribute):
                    place = f"callbacks/{name}/{self._group(name, attribute)}/{attribute}"
                    yield name, attribute, place, value

    def _is_kept(self, name: str, attribute: str) -> bool:
        return attribute not in attributes_of_keras(self._callbacks[name].__class__)

    def _group(self, name: str, attribute: str) -> str:
        return "clocks" if attribute in self._clocks[name] else "attributes"

    def _is_initial(self, place: str, written: Any, own: Mapping[str, Array]) -> bool:
        assert self._initial is not None
        if place not in self._initial or json.dumps(written) != json.dumps(self._initial[place]):
            return False
        before = self._initial_arrays
        return all(name in before and _same(before[name], array) for name, array in own.items())

    def _set(self, name: str, attribute: str, value: Any) -> None:
        callback = self._callbacks[name]
        if _values(callback).get(attribute) is not value:
            setattr(callback, attribute, value)


def is_same_in_each_start(value: object) -> bool:
    """Whether a value that is not kept is hardly anything that training changes, or is kept with the model."""
    kind = type(value)
    return issubclass(kind, _UNCHANGING) or kind.__name__.endswith(("Dataset", "DatasetV2"))


_UNCHANGING = (
    *(type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, functools.partial),
    *(PurePath, logging.Logger, date, timedelta, Enum, re.Pattern, np.dtype),
    *(keras.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.callbacks.Callback),
    keras.optimizers.schedules.LearningRateSchedule,
)


def _values(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Returns the attributes of a callback, and those of its classes that it may fill without having its own."""
    shared = {
        name: value
        for kind in reversed(type(callback).__mro__)
        if not is_of_keras(kind)
        for name, value in vars(kind).items()
        if type(value) in CONTAINERS and not name.startswith("__")
    }
    return {**shared, **attributes(callback)}


def _same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
