"""How the commands that look at a directory open it, and what they say when it is none of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.run_directory import read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store

__all__ = ["CANNOT_READ", "CannotRead", "directory_argument", "opened_run"]

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
