"""What the hooks of users' callbacks set outside of the callback, read from their code.

A training step that is traced keeps the Python values that it reads while it is traced. A hook may set one: an
attribute of the model, of its loss or a layer, a global variable. If it does so before the first step, a trace from
before that is outdated. If it does so later, the running step keeps the value of its first run, while a restarted
process traces the step with the value that is set by then.

A chain of attributes such as `self.model.loss.beta` is followed within one function. What is set through a variable
that holds a list or a dictionary is not seen.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType

import keras

from keras_preempt.state import callback_code

_NOT_READ_BY_A_STEP = frozenset(
    {"stop_training", "stop_evaluating", "stop_predicting", "learning_rate", "lr", "history"}
)
"""What a step does not read, or reads from a variable."""


def before_first_step(callbacks: Iterable[keras.callbacks.Callback]) -> list[str]:
    """Returns what callbacks could set outside of themselves before the first step, as "kl_weight (in Annealing)"."""
    return _set_outside(callbacks, callback_code.BEFORE_FIRST_STEP, variables=True)


def may_be_trainable(found: Iterable[str]) -> bool:
    """Whether what callbacks set may be which variables are trained."""
    return any(each.startswith(("trainable ", _BY_NAME)) for each in found)


def while_training(callbacks: Iterable[keras.callbacks.Callback]) -> list[str]:
    """Returns what attributes of other objects callbacks could set before the last step, in the same words."""
    return _set_outside(callbacks, callback_code.WHILE_TRAINING, variables=False)


def _set_outside(
    callbacks: Iterable[keras.callbacks.Callback], hooks: Iterable[str], *, variables: bool
) -> list[str]:
    found = set()
    for callback in callbacks:
        own = {id(code) for code in _methods(type(callback))}
        reading = callback_code.Reading(callback)
        for hook in hooks:
            reading.method(hook)
        for function in reading.everything():
            code = function.__code__
            this = code.co_varnames[0] if id(code) in own and code.co_argcount else None
            for name, is_variable in _set_by(code, this):
                if variables or not is_variable:
                    found.add(f"{name} (in {type(callback).__name__})")
    return sorted(found)


def _methods(kind: type) -> Iterator[CodeType]:
    for each in kind.__mro__:
        for value in vars(each).values():
            if isinstance(value, FunctionType):
                yield value.__code__


def _set_by(code: CodeType, this: str | None) -> Iterator[tuple[str, bool]]:
    """Yields the name of each thing that code sets and that is not its callback's, and whether it is a variable.

    Args:
        code: Of a function.
        this: The name of the callback in it; None if it is no method of one.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _NOTHING]
    for number, instruction in enumerate(instructions):
        operation, name = instruction.opname, str(instruction.argval)
        if operation == "STORE_GLOBAL" or (operation == "STORE_DEREF" and name in code.co_freevars):
            yield name, True
        elif operation == "STORE_ATTR" and name not in _NOT_READ_BY_A_STEP:
            if _chain(_before_copy(instructions[:number])) != [this]:
                yield name, False
        elif operation == "STORE_SUBSCR":
            chain = _chain(_before_value(instructions[:number]))
            if chain[0] == _GLOBAL:
                yield chain[-1], True
            elif chain[0] and len(chain) > (2 if chain[0] == this else 1):
                yield chain[-1], False
        elif operation == "LOAD_GLOBAL" and name == "setattr":
            to = [each for each in instructions[number + 1 : number + 4] if each.opname != "PUSH_NULL"][:2]
            if _chain(to[:1]) != [this] or to[1].opname == "LOAD_ATTR":
                yield _BY_NAME, False
    for each in code.co_consts:
        if isinstance(each, CodeType) and "__qualname__" not in each.co_names:
            yield from _set_by(each, this if this in each.co_freevars else None)


def _chain(instructions: Sequence[dis.Instruction]) -> list[str]:
    """Returns the names of the expression that instructions end with: `["self", "model", "loss"]`.

    The first name is empty if it is not that of a variable, and `_GLOBAL` before that of a global one.
    """
    chain: list[str] = []
    left = list(instructions)
    while left:
        instruction = left.pop()
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.insert(0, str(instruction.argval))
        elif instruction.opname.startswith("BINARY_SUBSCR") or instruction.argrepr == "[]":
            left = list(_before_value(left))
        elif instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            names = instruction.argval
            return [names[-1] if isinstance(names, tuple) else str(names), *chain]
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            return [_GLOBAL, str(instruction.argval), *chain]
        else:
            break
    return ["", *chain]


_GLOBAL = "global"
_BY_NAME = "what setattr sets"
_NOTHING = ("CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "NOT_TAKEN")


def _before_copy(instructions: Sequence[dis.Instruction]) -> Sequence[dis.Instruction]:
    """Returns the instructions that name the object of `object.name += value`, which copies it before it reads it."""
    if not instructions or instructions[-1].opname not in ("SWAP", "ROT_TWO"):
        return instructions
    copies = [n for n, each in enumerate(instructions) if each.opname in ("COPY", "DUP_TOP")]
    return instructions[: copies[-1]] if copies else instructions


def _before_value(instructions: Sequence[dis.Instruction]) -> Sequence[dis.Instruction]:
    """Returns the instructions before those that have put the last value on the stack."""
    missing = 1
    for number in range(len(instructions) - 1, -1, -1):
        each = instructions[number]
        missing -= dis.stack_effect(each.opcode, each.arg, jump=False)
        if missing <= 0:
            return instructions[:number]
    return ()
