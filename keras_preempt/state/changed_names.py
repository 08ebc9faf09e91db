"""What the code of callbacks changes, and which of it comes from a clock. Read from the code, line by line."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from keras_preempt.backend.keras.callbacks import is_of_keras
from keras_preempt.state.attribute_values import CONTAINERS

_CLOCKS = frozenset(
    {
        *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time"),
        *("now", "utcnow", "today", "timestamp", "strftime", "default_timer"),
    }
)

MUTATORS = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft"),
        *("popitem", "remove", "discard", "clear", "sort", "reverse", "fill", "subtract"),
    }
)
"""Methods that change the content of what they are called on."""

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


@dataclass
class _Line:
    """What the instructions of one line of code use and set: local variables, and ".name" for attributes."""

    used: set[str] = field(default_factory=set)
    set: set[str] = field(default_factory=set)
    clock: bool = False


@functools.cache
def clock_attributes(kind: type) -> frozenset[str]:
    """Returns the attributes of a class of the user's that come from a clock."""
    lines = [
        line
        for each in kind.__mro__
        if not is_of_keras(each)
        for name, function in vars(each).items()
        if isinstance(function, FunctionType)
        for line in _lines(function.__code__, name)
    ]
    found: set[str] = set()
    grown = True
    while grown:
        grown = False
        for line in lines:
            if (line.clock or line.used & found) and not line.set <= found:
                found |= line.set
                grown = True
    return frozenset(name[1:] for name in found if name.startswith("."))


def _lines(code: CodeType, function: str) -> Iterator[_Line]:
    lines: dict[int | None, _Line] = {}
    number: int | None = None
    loaded: list[str] = []
    for instruction in dis.get_instructions(code):
        if (at := _line_of(instruction)) is not None and at != number:
            number, loaded = at, []
        line = lines.setdefault(number, _Line())
        name, opname = str(instruction.argval), instruction.opname
        if opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            line.used |= {f"{function} {each}" for each in _names(instruction.argval)} - {f"{function} self"}
        elif opname in _ATTRIBUTES:
            if name in MUTATORS:
                line.set |= set(loaded[-1:])
            elif name in _CLOCKS:
                line.clock = True
            else:
                line.used.add(f".{name}")
                loaded.append(f".{name}")
        elif opname == "LOAD_GLOBAL":
            line.clock |= name in _CLOCKS - {"time"}
        elif opname == "STORE_SUBSCR":
            line.set |= set(loaded)
        if opname.startswith(("STORE_FAST", "STORE_DEREF")):
            line.set |= {f"{function} {each}" for each in _names(instruction.argval)[:1]}
        elif opname == "STORE_ATTR":
            line.set.add(f".{name}")
        elif opname == "RETURN_VALUE":
            line.set.add(f".{function}")
    yield from lines.values()
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _lines(each, function)


def _line_of(instruction: Any) -> int | None:
    number = getattr(instruction, "line_number", None)  # From Python 3.13 on.
    found = number if number is not None else instruction.starts_line
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _names(argval: Any) -> list[str]:
    return [str(each) for each in argval] if isinstance(argval, tuple) else [str(argval)]


def changed_outside(function: FunctionType, enclosed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the variables outside of a function that it sets, or whose content it changes; and their values.

    Args:
        function: The function.
        enclosed: The variables of an enclosing function that it uses.
    """
    outside = {**function.__globals__, **enclosed}
    for code in _codes(function.__code__):
        held: tuple[str, Any] | None = None
        containers: list[tuple[str, Any]] = []
        for instruction in dis.get_instructions(code):
            name, opname = str(instruction.argval), instruction.opname
            if opname == "STORE_GLOBAL" or (opname == "STORE_DEREF" and name in enclosed):
                yield name, None
            elif opname in _LOADS and name in outside:
                held = name, outside[name]
                if type(held[1]) in CONTAINERS:
                    containers.append(held)
            elif opname in _ATTRIBUTES:
                if held is not None and name in MUTATORS and type(held[1]) in CONTAINERS:
                    yield held
                held = None
            elif opname == "STORE_SUBSCR":
                yield from containers
                containers = []


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
