"""Options and checks that several commands share."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.run_directory import read_run
from keras_preempt.checkpoint.storage.store import Store, open_store
from keras_preempt.process.exit_codes import RESTART_CODES

__all__ = [
    "CANNOT_READ",
    "CannotRead",
    "checked_command",
    "command_argument",
    "directory_argument",
    "opened_run",
    "restart_code_option",
    "workers_option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def workers_option(function: _Command) -> _Command:
    """Adds --workers."""
    return click.option(
        "--workers",
        "-n",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Worker processes on this machine. Two or more get TF_CONFIG; one is a plain job without it.",
    )(function)


def restart_code_option(function: _Command) -> _Command:
    """Adds --restart-code."""
    return click.option(
        "--restart-code",
        "restart_codes",
        type=int,
        multiple=True,
        default=RESTART_CODES,
        show_default=True,
        metavar="CODE",
        help="Exit code by which a worker says that it was preempted. Can be given more than once.",
    )(function)


def command_argument(function: _Command) -> _Command:
    """Adds the command to run, everything after ``--``."""
    return click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")(function)


def checked_command(workers: int, command: tuple[str, ...]) -> list[str]:
    """Returns the command as a list.

    Raises:
        click.UsageError: fewer than one worker, no command, or a command or script that does not exist.
    """
    if workers < 1:
        raise click.UsageError(f"Expected --workers of at least 1. Received: {workers}.")
    if not command:
        raise click.UsageError(
            "Expected a command after '--'. Received: none. Write for example: -- python train.py"
        )
    program = command[0]
    if shutil.which(program) is None:
        problem = "which was not found. Check the spelling and PATH."
        if os.path.isfile(program):
            problem = f"a file that cannot be executed. Write for example: -- python {program}"
        raise click.UsageError(f"Expected a program to run. Received: {program!r}, {problem}")
    script = _script_of(command)
    if script is not None and not os.path.exists(script):
        raise click.UsageError(
            f"Expected a script to run. Received: {script!r}, which does not exist in {os.getcwd()}. "
            "Check the spelling, or start this command where the script is."
        )
    return list(command)


def _script_of(command: tuple[str, ...]) -> str | None:
    """Returns the Python script that a command runs; None if that cannot be told."""
    if not os.path.basename(command[0]).startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-X", "-W"):
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word.startswith(("-c", "-m")) or word == "-":
            return None
    return None


CANNOT_READ = 3
"""Exit code: the directory, or what was asked for in it, cannot be read."""

directory_argument = click.argument("directory", metavar="DIR")
"""A path, or ``gs://bucket/prefix``."""


class CannotRead(click.ClickException):
    """The directory, or what was asked for in it, cannot be read."""

    exit_code = CANNOT_READ


@contextlib.contextmanager
def opened_run(directory: str) -> Iterator[tuple[Store, dict[str, Any]]]:
    """Gives the store of a run, and what its run.json says; nothing is written.

    Raises:
        click.UsageError: it is no place at all.
        CannotRead: it is not the directory of a run, cannot be read, or the block has raised a `CheckpointError`.
    """
    try:
        store = open_store(directory)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        yield store, read_run(store)
    except CheckpointError as error:
        raise CannotRead(str(error)) from None
    finally:
        store.close()
