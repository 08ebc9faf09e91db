"""Reads blocks of shell commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tests.docs.pages import Block

SHELLS = ("sh", "bash", "console")


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        where: Page and line of its block.
        words: Program and arguments.
        variables: What is set for it alone.
    """

    where: str
    words: list[str]
    variables: dict[str, str]

    @property
    def of_keras_preempt(self) -> str:
        """The command of `keras-preempt` that it is, such as "drill"; else empty."""
        return self.words[1] if self.words[0] == "keras-preempt" else ""


def commands_of(block: Block) -> list[Command]:
    """The commands of a block, without comments."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            words = shlex.split(part, comments=True)
            variables = {}
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                name, _, value = words.pop(0).partition("=")
                variables[name] = value
            if words:
                found.append(Command(block.where, words, variables))
    return found
