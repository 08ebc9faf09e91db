"""What the code of callbacks sets and changes, and which of it comes from a clock, read from its bytecode.

A chain of attributes such as `self.model.loss.beta` is followed within one function. What is set through a variable
that holds a list or a dictionary is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from keras_preempt.backend.bytecode import Instruction, inner, instructions, within
from keras_preempt.backend.user_code import is_of_keras
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

_NOT_READ_BY_A_STEP = frozenset(
    {"stop_training", "stop_evaluating", "stop_predicting", "learning_rate", "lr", "history"}
)
"""What a training step does not read, or reads from a variable."""

BY_NAME = "what setattr sets"
"""Stands for a name that the code does not show."""

_GLOBAL = "global"


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
    for each in within(code):
        number = 0
        loaded: list[str] = []
        lines: dict[int, _Line] = {}
        for step in instructions(each):
            if step.line != number:
                number, loaded = step.line, []
            line = lines.setdefault(number, _Line())
            if step.does in ("LOAD_FAST", "LOAD_DEREF") and step.name != "self":
                line.used.add(f"{function} {step.name}")
            elif step.does == "LOAD_ATTR":
                if step.name in MUTATORS:
                    line.set |= set(loaded[-1:])
                elif step.name in _CLOCKS:
                    line.clock = True
                else:
                    line.used.add(f".{step.name}")
                    loaded.append(f".{step.name}")
            elif step.does == "LOAD_GLOBAL":
                line.clock |= step.name in _CLOCKS - {"time"}
            elif step.does == "STORE_SUBSCR":
                line.set |= set(loaded)
            elif step.does in ("STORE_FAST", "STORE_DEREF"):
                line.set.add(f"{function} {step.name}")
            elif step.does == "STORE_ATTR":
                line.set.add(f".{step.name}")
            elif step.does == "RETURN_VALUE":
                line.set.add(f".{function}")
        yield from lines.values()


def changed_outside(function: FunctionType, enclosed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the variables outside of a function that it sets, or whose content it changes; and their values.

    `enclosed` are the variables of an enclosing function that it uses.
    """
    outside = {**function.__globals__, **enclosed}
    for code in within(function.__code__):
        held: tuple[str, Any] | None = None
        containers: list[tuple[str, Any]] = []
        for step in instructions(code):
            name = step.name
            if step.does == "STORE_GLOBAL" or (step.does == "STORE_DEREF" and name in enclosed):
                yield name, None
            elif step.does in ("LOAD_GLOBAL", "LOAD_DEREF") and name in outside:
                held = name, outside[name]
                if type(held[1]) in CONTAINERS:
                    containers.append(held)
            elif step.does == "LOAD_ATTR":
                if held is not None and name in MUTATORS and type(held[1]) in CONTAINERS:
                    yield held
                held = None
            elif step.does == "STORE_SUBSCR":
                yield from containers
                containers = []


def set_by(code: CodeType, this: str | None) -> Iterator[tuple[str, bool]]:
    """Yields the name of each thing that a function's code sets outside its callback, and whether it is a variable.

    `this` is what the code calls the callback, usually "self"; None if the function is no method of one.
    """
    done = instructions(code)
    for number, (does, name, _, _) in enumerate(done):
        if does == "STORE_GLOBAL" or (does == "STORE_DEREF" and name in code.co_freevars):
            yield name, True
        elif does == "STORE_ATTR" and name not in _NOT_READ_BY_A_STEP:
            if _chain(_before_copy(done[:number])) != [this]:
                yield name, False
        elif does == "STORE_SUBSCR":
            chain = _chain(_before_value(done[:number]))
            if chain[0] == _GLOBAL:
                yield chain[-1], True
            elif chain[0] and len(chain) > (2 if chain[0] == this else 1):
                yield chain[-1], False
        elif does == "LOAD_GLOBAL" and name == "setattr":
            to = [each for each in done[number + 1 : number + 4] if each.does != "PUSH_NULL"][:2]
            if _chain(to[:1]) != [this] or to[1].does == "LOAD_ATTR":
                yield BY_NAME, False
    for each in inner(code, classes=False):
        yield from set_by(each, this if this in each.co_freevars else None)


def _chain(before: Sequence[Instruction]) -> list[str]:
    """Returns the names of the expression that steps end with: `["self", "model", "loss"]`.

    The first name is empty if it is not that of a variable, and `_GLOBAL` before that of a global one.
    """
    chain: list[str] = []
    while before:
        last, before = before[-1], before[:-1]
        if last.does == "LOAD_ATTR":
            chain.insert(0, last.name)
        elif last.does == "BINARY_SUBSCR":
            before = _before_value(before)
        elif last.does in ("LOAD_FAST", "LOAD_DEREF"):
            return [last.name, *chain]
        elif last.does == "LOAD_GLOBAL":
            return [_GLOBAL, last.name, *chain]
        else:
            break
    return ["", *chain]


def _before_copy(before: Sequence[Instruction]) -> Sequence[Instruction]:
    """Returns the steps that name the object of `object.name += value`, which copies it before it reads it."""
    if not before or before[-1].does != "SWAP":
        return before
    copies = [number for number, each in enumerate(before) if each.does == "COPY"]
    return before[: copies[-1]] if copies else before


def _before_value(before: Sequence[Instruction]) -> Sequence[Instruction]:
    """Returns the steps before those that have put the last value on the stack."""
    missing = 1
    for number in range(len(before) - 1, -1, -1):
        missing -= before[number].adds
        if missing <= 0:
            return before[:number]
    return ()
