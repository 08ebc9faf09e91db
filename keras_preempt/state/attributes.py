"""The attributes of users' callbacks that have changed since the fit began: kept without `get_state` and `set_state`.

Attributes of numbers, texts, arrays, lists, dictionaries and the like are kept. A class says `keeps_state = False` if
its attributes are not to be. Those that Keras' own classes set are left out. Values that come from a clock are stored
as a group of their own, since they differ between any two runs.
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
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_preempt.backend.keras.callbacks import attributes_of_keras
from keras_preempt.backend.user_code import attributes, is_of_keras
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state.attribute_values import CONTAINERS, AttributeReader, AttributeWriter, NotPlainError
from keras_preempt.state.callback_cure import cure
from keras_preempt.state.changed_names import clock_attributes

KEEPS = "keeps_state"
"""The attribute that is False on a class whose attributes are not to be kept."""

_UNCHANGING = (
    *(type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, functools.partial),
    *(PurePath, logging.Logger, date, timedelta, Enum, re.Pattern, np.dtype),
    *(keras.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.callbacks.Callback),
    keras.optimizers.schedules.LearningRateSchedule,
)

logger = logging.getLogger("keras_preempt")


class _Attribute(NamedTuple):
    """An attribute of one of the callbacks."""

    owner: str
    name: str
    group: str
    value: Any
    place: str  # The name of its value in a checkpoint.


class Attributes:
    """The attributes of the callbacks of one fit, by names that are the same in each start."""

    def __init__(self, callbacks: Mapping[str, keras.callbacks.Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._initial: dict[str, Any] | None = None
        self._initial_arrays: dict[str, Array] = {}
        self._there: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._logged = {each.place for each, _, not_plain in self._written(AttributeWriter({})) if not_plain}

    def begin(self) -> None:
        """Remembers the attributes as they are when the first epoch begins; only the first call does."""
        if self._initial is not None:
            return
        self._initial = {}
        writer = AttributeWriter(self._initial_arrays)
        for each, written, not_plain in self._written(writer):
            if not_plain:
                self._others[each.place] = each.value
            else:
                self._initial[each.place] = written
        self._there = writer.objects

    def capture(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Returns those that have changed as JSON data, with their arrays added to `arrays`."""
        found: dict[str, Any] = {}
        writer = AttributeWriter({}, self._there)
        for each in self._all():
            if self._others.get(each.place) is each.value and each.value is not None:
                continue
            before = set(writer.arrays)
            try:
                written = writer.write(each.value, each.place)
            except NotPlainError:
                continue
            own = {name: writer.arrays[name] for name in writer.arrays.keys() - before}
            initial, arrays_before = self._initial or {}, self._initial_arrays
            same = (
                each.place in initial
                and json.dumps(written) == json.dumps(initial[each.place])
                and all(
                    name in arrays_before
                    and (arrays_before[name].dtype, arrays_before[name].shape) == (array.dtype, array.shape)
                    and arrays_before[name].tobytes() == array.tobytes()
                    for name, array in own.items()
                )
            )
            if self._initial is not None and not same:
                found.setdefault(each.owner, {}).setdefault(each.group, {})[each.name] = written
                arrays.update(own)
        return found

    def restore(self, states: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Puts back what `capture` has returned, and all others to what they were when the first epoch began."""
        self.begin()
        assert self._initial is not None
        reader = AttributeReader(self._initial_arrays, self._there)
        for each in list(self._all()):
            if each.place in self._initial:
                self._set(each.owner, each.name, reader.read(self._initial[each.place], each.place))
        reader = AttributeReader(arrays, self._there)
        for owner, state in states.items():
            for group, values in state.items():
                for name, written in values.items() if owner in self._callbacks else ():
                    # Only what `capture` takes: another one could be the path of a file.
                    if name not in attributes_of_keras(self._callbacks[owner].__class__):
                        self._set(owner, name, reader.read(written, f"callbacks/{owner}/{group}/{name}"))

    def not_plain(self, owner: str) -> dict[str, tuple[Any, str]]:
        """Returns the attributes of a callback that cannot be kept, each with its value and the kind of it."""
        written = self._written(AttributeWriter({}))
        return {each.name: (each.value, kind) for each, _, kind in written if kind and each.owner == owner}

    def tell_unkept(self, member: int) -> None:
        """Logs on worker 0, once each, which attributes have come to hold what cannot be kept."""
        new = []
        for each, _, not_plain in self._written(AttributeWriter({})) if member == 0 else ():
            if not_plain and each.place not in self._logged and not is_same_in_each_start(each.value):
                self._logged.add(each.place)
                new.append(f"{each.owner}.{each.name} ({not_plain})")
        if new:
            what = f"{', '.join(new)} cannot be kept over a restart. {cure(new)}"
            logger.warning("Perhaps not exact after a preemption: %s.", what)

    def is_kept(self, value: object) -> bool:
        """Whether an object is, or is in, an attribute that is kept."""
        writer = AttributeWriter({})
        list(self._written(writer))
        return any(each is value for each in writer.objects.values())

    def _written(self, writer: AttributeWriter) -> Iterator[tuple[_Attribute, Any, str]]:
        """Yields each attribute with what the writer makes of it, and with what in it cannot be kept, if anything."""
        for each in self._all():
            written, not_plain = None, ""
            try:
                written = writer.write(each.value, each.place)
            except NotPlainError as error:
                not_plain = str(error)
            yield each, written, not_plain

    def _all(self) -> Iterator[_Attribute]:
        for owner, callback in self._callbacks.items():
            of_keras, clocks = attributes_of_keras(callback.__class__), clock_attributes(callback.__class__)
            for name, value in _values(callback).items():
                if name not in of_keras:
                    group = "clocks" if name in clocks else "attributes"
                    yield _Attribute(owner, name, group, value, f"callbacks/{owner}/{group}/{name}")

    def _set(self, name: str, attribute: str, value: Any) -> None:
        callback = self._callbacks[name]
        if _values(callback).get(attribute) is not value:
            setattr(callback, attribute, value)


def is_same_in_each_start(value: object) -> bool:
    """Whether training hardly changes a value that is not kept, or the model keeps it."""
    kind = type(value)
    return issubclass(kind, _UNCHANGING) or kind.__name__.endswith(("Dataset", "DatasetV2"))


def _values(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Returns the attributes of a callback, and the containers of its classes, which it may fill."""
    shared = {
        name: value
        for kind in reversed(type(callback).__mro__)
        if not is_of_keras(kind)
        for name, value in vars(kind).items()
        if type(value) in CONTAINERS and not name.startswith("__")
    }
    return {**shared, **attributes(callback)}
