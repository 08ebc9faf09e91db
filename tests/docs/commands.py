"""Reads blocks of shell commands, and checks those that are not run: everything that they name exists."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tests.docs.pages import ROOT, Block

SHELLS = ("sh", "bash", "console")

#: Programs that are not installed here, or that run for minutes. A script of this repository may be named as well.
PROGRAMS = ("apt-get", "aws", "az", "docker", "gcloud", "kubectl", "make", "pip", "python", "sbatch")

_FILE = re.compile(r"(?:--[\w-]+=)?((?:[\w.-]+/)*(?:[\w-]+\.(?:py|yaml|sh|sbatch|toml|txt)|Dockerfile))")


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


def assert_names_only_what_is_there(commands: Sequence[Command], why: str) -> None:
    """Asserts that commands which are not run name programs, files, targets and extras that there are.

    Args:
        commands: The commands of a block.
        why: Why they are not run.
    """
    where, folder = commands[0].where, ROOT
    assert len(why.split()) > 2, f"{where}: say why it is not run"
    for command in commands:
        program, *words = command.words
        if program == "cd":
            folder = folder / words[0]
            assert folder.is_dir(), f"{where}: there is no {words[0]}"
            continue
        for word in words:
            if named := _FILE.fullmatch(word):
                assert (folder / named[1]).is_file(), f"{where} names {named[1]}, which is not there"
        if program.startswith("./"):
            script = folder / program
            assert os.access(script, os.X_OK), f"{where}: {program} is not there, or cannot be run"
            unread = [name for name in command.variables if name not in script.read_text()]
            assert not unread, f"{where}: {program} does not read {unread}"
            continue
        assert program in PROGRAMS, f"{where}: {program} is to be run, or added to {PROGRAMS}"
        if program == "make":
            target, *settings = words
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{where}: no target {target}"
            unread = [each for each in settings if f"$({each.partition('=')[0]})" not in makefile]
            assert not unread, f"{where}: the Makefile does not read {unread}"
        if program == "pip":
            _assert_installable(where, words)


def _assert_installable(where: str, words: Sequence[str]) -> None:
    install, wanted = words
    parts = re.fullmatch(r"([\w-]+)\[([\w,]+)\]", wanted)
    assert install == "install"
    assert parts, f"{where}: {wanted}"
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nname = "{parts[1]}"\n' in project, f"{where}: {wanted}"
    extras = project.partition("[project.optional-dependencies]")[2]
    for extra in parts[2].split(","):
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), f"{where}: no extra {extra}"
