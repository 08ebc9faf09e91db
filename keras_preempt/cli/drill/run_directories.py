"""Where the runs of a drill keep their checkpoints: in a temporary directory, or where the user wants them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cluster.scratch import scratch_directory

__all__ = ["RunDirectories", "run_directories"]


class RunDirectories:
    """A place below which each run gets a directory of its own.

    Args:
        place: a path, or ``gs://bucket/prefix``.
        local: whether it is a path.
    """

    def __init__(self, place: str, *, local: bool) -> None:
        self._place = place.rstrip("/")
        self._local = local

    @property
    def path(self) -> Path | None:
        """The place, if it is on this machine's disk."""
        return Path(self._place).resolve() if self._local else None

    def of(self, run: str) -> str:
        """Returns the directory of the run of that name; makes it if need be."""
        directory = f"{self._place}/{run}"
        if self._local:
            Path(directory).mkdir(exist_ok=True)
        return directory


@contextlib.contextmanager
def run_directories(keep: str | None) -> Iterator[RunDirectories]:
    """Gives the place of both runs: a temporary directory, or the user's, which has to be new or empty.

    Raises:
        click.UsageError: the user's cannot be used.
    """
    if keep is None:
        with scratch_directory("drill") as path:
            yield RunDirectories(str(path), local=True)
        return
    try:
        store = open_store(keep)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    local = isinstance(store, LocalStore)
    place = str(_made(Path(keep))) if local else _proved(store)
    yield RunDirectories(place, local=local)


def _made(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True, exist_ok=True)
        taken = os.listdir(keep)
    except OSError as error:
        raise click.UsageError(
            f"Expected a directory to keep. Received: {keep} ({error.strerror})."
        ) from None
    _check_empty(str(keep), taken)
    return keep.resolve()


def _proved(store: Store) -> str:
    try:
        store.prepare()
        taken = store.children("")
    except StoreUnavailable as error:
        raise click.UsageError(str(error)) from None
    finally:
        store.close()
    _check_empty(store.url, taken)
    return store.url


def _check_empty(keep: str, taken: list[str]) -> None:
    if taken:
        raise click.UsageError(
            f"Expected a new or empty directory for --keep. Received: {keep}, with files in it."
        )
