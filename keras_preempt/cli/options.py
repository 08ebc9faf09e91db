"""Options, arguments and checks that several commands share."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.checkpoint.run_directory import read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cluster import RestartPolicy
from keras_preempt.cluster.hangs import AUTO, LEAST_HANG
from keras_preempt.process.exit_codes import RESTART_CODES

_Command = TypeVar("_Command", bound=Callable[..., Any])

workers_option = click.option(
    "--workers",
    "-n",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes on this machine. Two or more are told how to find each other; one is a plain job.",
)

restart_code_option = click.option(
    "--restart-code",
    "restart_codes",
    type=int,
    multiple=True,
    default=RESTART_CODES,
    show_default=True,
    metavar="CODE",
    help="Exit code by which a worker says that it was preempted. Can be given more than once.",
)

standby_option = click.option(
    "--standby",
    is_flag=True,
    help="Keep a process for each worker that has imported what the script imports, so that a restart need not.",
)

command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
directory_argument = click.argument("directory", metavar="DIR")


def seconds_option(
    name: str, *, help: str, default: float | None = None, zero: bool = False
) -> Callable[[_Command], _Command]:
    """Adds an option that is a number of seconds; `zero`: it may be 0."""
    seconds = click.FloatRange(min=0, min_open=not zero)
    shown = default is not None
    return click.option(name, type=seconds, default=default, show_default=shown, metavar="SECONDS", help=help)


def json_option(help: str) -> Callable[[_Command], _Command]:
    return click.option("--json", "as_json", is_flag=True, help=help)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class _Size(click.ParamType):  # type: ignore[type-arg]
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
        if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
            self.fail(f"Expected a size such as 2GB, 500MB or 1.5GiB. Received: {value!r}.", param, ctx)
        return round(float(found[1]) * _UNITS[found[2].upper()])


class _Duration(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = seconds_of(value)
        if seconds is None:
            self.fail(f"Expected a time such as 11h50m, 90min or 30s. Received: {value!r}.", param, ctx)
        return seconds


DURATION = _Duration()  # The type of an option that is a time, in seconds.


class _Hang(click.ParamType):  # type: ignore[type-arg]
    name = "hang"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        if value in (AUTO, "off", None):
            return None if value == "off" else AUTO
        seconds = seconds_of(value)
        if seconds is None or seconds < LEAST_HANG:
            self.fail(
                f"Expected auto, off, or a time of at least {LEAST_HANG:g} s such as '90s', '10min' or '2h'. "
                f"Received: {value!r}.",
                param,
                ctx,
            )
        return seconds


HANG = _Hang()
SIZE = _Size()  # The type of an option that is a number of bytes.


def restart_policy(**fields: Any) -> RestartPolicy:
    try:
        return RestartPolicy(**fields)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def checked_command(workers: int, command: tuple[str, ...]) -> list[str]:
    """Returns the command as a list; a usage error if it, its script, or a worker is missing."""
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
    """Returns the Python script that a command runs; None if unknown."""
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


class CannotRead(click.ClickException):
    """The directory, or what was asked for in it, cannot be read."""

    exit_code = 3


def store_of(directory: str, staging_dir: str | None = None) -> Store:
    try:
        return open_store(directory, staging_dir=staging_dir)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@contextlib.contextmanager
def opened(directory: str) -> Iterator[Store]:
    """Yields the store of a directory; a `CheckpointError` of the block becomes `CannotRead`."""
    with contextlib.closing(store_of(directory)) as store:
        try:
            yield store
        except CheckpointError as error:
            raise CannotRead(str(error)) from None


@contextlib.contextmanager
def opened_run(directory: str) -> Iterator[tuple[Store, dict[str, Any]]]:
    """Like `opened`, for the directory of a run; also yields its run.json."""
    with opened(directory) as store:
        yield store, read_run(store)
