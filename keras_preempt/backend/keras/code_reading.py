"""What can be told of a function of Keras from its code, without calling it."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any


def code_of(function: Callable[..., Any]) -> list[CodeType]:
    """Returns the code of a function and of all functions within it."""
    return list(_within(function.__code__))


def reads(code: CodeType, variable: str) -> bool:
    """Whether code reads a variable of a function around it, or one that functions within it read."""
    return any(i.opname == "LOAD_DEREF" and i.argval == variable for i in dis.get_instructions(code))


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)
