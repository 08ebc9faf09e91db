"""The code of functions as instructions of the same names in all versions of Python from 3.10 on; nothing is run."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

_LEFT_OUT = frozenset({"CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "NOT_TAKEN", "RESUME"})

_SAME = {
    **dict.fromkeys(("LOAD_FAST_BORROW", "LOAD_FAST_CHECK"), "LOAD_FAST"),
    **dict.fromkeys(("LOAD_METHOD", "LOAD_SUPER_ATTR"), "LOAD_ATTR"),
    **dict.fromkeys(("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), "LOAD_GLOBAL"),
    **dict.fromkeys(("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"), "LOAD_DEREF"),
    **{"DUP_TOP": "COPY", "ROT_TWO": "SWAP", "ROT_THREE": "SWAP", "RETURN_CONST": "RETURN_VALUE"},
}
"""Instructions of single versions, by the one that does the same to names and values."""

_BOTH = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "BINARY_SLICE": ("BUILD_SLICE", "BINARY_SUBSCR"),
    "STORE_SLICE": ("BUILD_SLICE", "STORE_SUBSCR"),
}
"""Instructions that do two things: for slices from Python 3.12 on, for two local variables from 3.13 on."""

_ADDS = {"LOAD_FAST": 1, "STORE_FAST": -1, "BUILD_SLICE": -1, "BINARY_SUBSCR": -1, "STORE_SUBSCR": -3}
"""What the parts of those add to the stack."""


class Instruction(NamedTuple):
    """One thing that code does."""

    does: str  # As Python 3.11 names it, with LOAD_ATTR for methods and LOAD_GLOBAL for LOAD_NAME.
    name: str  # The variable, attribute or module.
    line: int  # 0 if unknown.
    adds: int  # How many more values are on the stack after it.


@functools.lru_cache(maxsize=4096)
def instructions(code: CodeType) -> tuple[Instruction, ...]:
    """Returns the instructions of code, without those of code defined in it."""
    found = []
    line = 0
    cells = {*code.co_cellvars, *code.co_freevars}
    for each in dis.get_instructions(code):
        # From Python 3.13 on, `starts_line` only says whether a line starts.
        at = getattr(each, "line_number", each.starts_line)
        line = line if at is None else int(at)
        if each.opname in _LEFT_OUT:
            continue
        does = "BINARY_SUBSCR" if each.argrepr == "[]" else _SAME.get(each.opname, each.opname)
        parts = _BOTH.get(does, (does,))
        of_two = len(parts) == 2 and isinstance(each.argval, tuple)
        for part, name in zip(parts, each.argval if of_two else [each.argval] * len(parts), strict=True):
            # A cell that is handed to an inner function, from Python 3.13 on: its value is not loaded.
            is_cell = part == "LOAD_FAST" and name in cells
            adds = _ADDS[part] if does in _BOTH else dis.stack_effect(each.opcode, each.arg, jump=False)
            found.append(Instruction("LOAD_CLOSURE" if is_cell else part, str(name), line, adds))
    return tuple(found)


def inner(code: CodeType, *, classes: bool = True) -> list[CodeType]:
    """Returns the code of the functions, comprehensions and classes defined directly in code."""
    found = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found if classes else [each for each in found if "__qualname__" not in each.co_names]


def within(code: CodeType, *, classes: bool = True) -> Iterator[CodeType]:
    """Yields code and all code defined in it."""
    yield code
    for each in inner(code, classes=classes):
        yield from within(each, classes=classes)


def instructions_within(code: CodeType, *, classes: bool = True) -> Iterator[Instruction]:
    """Yields the instructions of code and of all code defined in it."""
    for each in within(code, classes=classes):
        yield from instructions(each)


def names_in(code: CodeType) -> set[str]:
    """Returns the names in code and in code defined in it; strings too, since `getattr` may be given them."""
    found: set[str] = set()
    for each in within(code):
        found.update(each.co_names)
        found.update(text for text in each.co_consts if isinstance(text, str) and text.isidentifier())
    return found


def stored_attributes(code: CodeType) -> set[str]:
    """Returns the attributes, of any object, that code or code defined in it sets."""
    return {step.name for step in instructions_within(code) if step.does == "STORE_ATTR"}
