"""Values of attributes as JSON beside named arrays, and back into the objects that are there.

Beyond plain data (see `plain`) these may be sets, deques, counters and random generators. Two places that hold one
object hold one object again. An object that had been there when the fit began, and that others may hold as well, gets
its content back; any other is made anew.
"""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state import plain

LARGEST = 16 << 20
"""The most bytes of arrays and texts that are kept of one attribute."""

MOST = 100_000
"""The most values that are kept of one attribute."""

_TAG = "$"
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
CONTAINERS = (list, set, deque, np.ndarray, *_MAPPINGS)
"""Types whose content can change."""

_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    random.Random: (lambda it: it.getstate(), lambda it, state: it.setstate(state)),
    np.random.Generator: (
        lambda it: it.bit_generator.state,
        lambda it, state: setattr(it.bit_generator, "state", state),
    ),
    np.random.RandomState: (lambda it: it.get_state(), lambda it, state: it.set_state(state)),
}
"""Types of random generators: what returns the state of one, and what sets it."""

_KINDS: dict[Any, type] = {
    None: dict,
    **{kind.__name__: kind for kind in (set, deque, *_MAPPINGS, *_GENERATORS)},
}
"""Types by their tags."""


class NotPlainError(Exception):
    """A value cannot be kept; the text says what it is."""


class AttributeWriter:
    """Makes JSON data of the attributes of one fit's callbacks, and adds their arrays to `arrays`.

    `there` are the objects that had been there when the fit began, by their places; None if it is beginning. `objects`
    are those that were written, likewise.
    """

    def __init__(self, arrays: dict[str, Array], there: Mapping[str, Any] | None = None) -> None:
        self.arrays = arrays
        self._there = there
        self._places: dict[int, str] = {}
        self._count = self._bytes = 0
        self.objects: dict[str, Any] = {}

    def write(self, value: Any, place: str) -> Any:
        """Returns the value of the attribute at a place as JSON data; raises `NotPlainError` if it cannot be kept."""
        places, objects, arrays = self._places.copy(), self.objects.copy(), self.arrays.copy()
        self._count = self._bytes = 0
        try:
            return self._write(value, place)
        except (NotPlainError, RecursionError) as error:
            self._places, self.objects = places, objects
            for name in self.arrays.keys() - arrays.keys():
                del self.arrays[name]
            raise NotPlainError(str(error) or "a value nested too deeply") from None

    def _write(self, value: Any, place: str) -> Any:
        kind = type(value)
        if kind in CONTAINERS or kind in _GENERATORS:
            if (first := self._places.setdefault(id(value), place)) != place:
                return {_TAG: "same", "as": first}
            self.objects[place] = value
            written = self._write_object(value, place)
            known = self._there is None or self._there.get(place) is value
            return written if known else {_TAG: "new", "value": written}
        self._weigh(len(value) if kind in (str, bytes) else 0)
        if kind is tuple:
            return {_TAG: "tuple", "items": self._write_all(value, place)}
        if kind is complex:
            return {_TAG: "complex", "parts": [self._leaf(part, place) for part in (value.real, value.imag)]}
        if kind is bytes:
            return {_TAG: "bytes", "hex": value.hex()}
        if kind in (bool, int, float, str, type(None)) or isinstance(value, np.generic):
            return self._leaf(value, place)
        raise NotPlainError(kind.__name__)

    def _write_object(self, value: Any, place: str) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            self._weigh(value.nbytes)
            return self._leaf(value, place)
        if kind in _GENERATORS:
            return {_TAG: kind.__name__, "state": self._leaf(_GENERATORS[kind][0](value), place)}
        if kind is set:
            items = self._write_all(value, place)
            return {_TAG: "set", "items": sorted(items, key=json.dumps)}
        if kind is deque:
            return {_TAG: "deque", "maxlen": value.maxlen, "items": self._write_all(value, place)}
        if kind is list:
            return self._write_all(value, place)
        if kind is defaultdict and self._there is not None and self._there.get(place) is not value:
            raise NotPlainError("defaultdict")
        if all(type(key) is str for key in value) and _TAG not in value and kind is dict:
            return {key: self._write(item, f"{place}/{key}") for key, item in value.items()}
        keys = self._write_all(value, f"{place}.keys")
        return {_TAG: kind.__name__, "keys": keys, "items": self._write_all(value.values(), place)}

    def _write_all(self, values: Iterable[Any], place: str) -> list[Any]:
        return [self._write(each, f"{place}/{number}") for number, each in enumerate(values)]

    def _leaf(self, value: Any, place: str) -> Any:
        own: dict[str, Array] = {}
        try:
            written = plain.encode(value, own, place)
        except TypeError:
            kind = getattr(value, "dtype", None)
            raise NotPlainError(f"array of {kind}" if kind is not None else type(value).__name__) from None
        self.arrays.update((name, array.copy()) for name, array in own.items())
        return written

    def _weigh(self, size: int) -> None:
        self._count, self._bytes = self._count + 1, self._bytes + size
        if self._count > MOST or self._bytes > LARGEST:
            raise NotPlainError("more than 16 MiB or 100,000 values")


class AttributeReader:
    """Turns what an `AttributeWriter` has made into values again, in the objects that are there."""

    def __init__(self, arrays: Mapping[str, Array], there: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._there = there
        self._made: dict[str, Any] = {}

    def read(self, written: Any, place: str, *, new: bool = False) -> Any:
        """Returns the value at a place, a `new` object or the one that was there; `ValueError` for other data."""
        tag = written.get(_TAG) if isinstance(written, dict) else None
        if tag == "new":
            return self.read(written["value"], place, new=True)
        if tag == "same":
            found = self._made.get(written["as"], self._there.get(written["as"]))
            if found is None:
                raise ValueError(f"Expected an object at {written['as']!r:.100}. Received: none.")
            return found
        if tag == "tuple":
            return tuple(self._read_all(written["items"], place))
        if tag == "complex":
            return complex(*(plain.decode(part, self._arrays) for part in written["parts"]))
        if tag == "bytes":
            return bytes.fromhex(written["hex"])
        there = None if new else self._there.get(place)
        kind: Any = list if isinstance(written, list) else None
        kind = _KINDS.get(tag) if isinstance(written, dict) else kind
        if kind is None:
            value = plain.decode(written, self._arrays)
            if isinstance(value, np.ndarray):
                if type(there) is np.ndarray and (there.dtype, there.shape) == (value.dtype, value.shape):
                    there[...] = value
                    value = there
                self._made[place] = value
            return value
        if kind is deque and not (isinstance(there, deque) and there.maxlen == written["maxlen"]):
            there = deque(maxlen=written["maxlen"])
        elif kind is not deque and type(there) is not kind:
            there = np.random.default_rng() if kind is np.random.Generator else kind()
        self._made[place] = there
        self._fill(there, written, place)
        return there

    def _fill(self, value: Any, written: Any, place: str) -> None:
        if type(value) in _GENERATORS:
            _GENERATORS[type(value)][1](value, plain.decode(written["state"], self._arrays))
        elif isinstance(value, list):
            value[:] = self._read_all(written, place)
        elif isinstance(value, (set, deque)):
            content = self._read_all(written["items"], place)
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(content)
        else:
            if _TAG in written:
                keys = self._read_all(written["keys"], f"{place}.keys")
                items = dict(zip(keys, self._read_all(written["items"], place), strict=True))
            else:
                items = {key: self.read(item, f"{place}/{key}") for key, item in written.items()}
            value.clear()
            value.update(items)

    def _read_all(self, items: Iterable[Any], place: str) -> list[Any]:
        return [self.read(item, f"{place}/{number}") for number, item in enumerate(items)]
