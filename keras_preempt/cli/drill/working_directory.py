"""What a drilled script leaves in the working directory, where the second run finds what the first one left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import click

from keras_preempt.cli.drill.output_files import output_files

__all__ = ["WorkingDirectories"]

MOST_FILES = 20_000
"""Files that are looked at, at most: a drill must not take minutes to look around in a home directory."""

LARGEST_COPY = 1 << 30
"""Bytes of a working directory that is copied for each run, at most."""

_PASSED_OVER = frozenset(
    {
        ".git",
        ".hg",
        ".venv",
        "venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        "node_modules",
    }
)

_FILES_NAMED = 5

Snapshot = dict[str, tuple[int, int]]


class WorkingDirectories:
    """The working directory of each run of a drill; and what the first run wrote there, if they share it.

    Args:
        scratch: a folder of the drill, for copies.
        kept: where checkpoints are kept, or None.
        isolate: whether each run gets a copy of its own.

    Attributes:
        written: the files that the first run has left for the second one, in words; empty for none.
    """

    def __init__(self, scratch: Path, kept: Path | None, *, isolate: bool) -> None:
        self._scratch = scratch
        self._without = {scratch} if kept is None else {scratch, kept}
        self._isolate = isolate
        self._here = Path.cwd()
        self._before = None if isolate else snapshot(self._here, self._without)
        self.written = ""

    def of(self, run: str) -> Path | None:
        """Returns the working directory of a run; None for the present one.

        Raises:
            click.UsageError: it cannot be copied.
        """
        return copy_of(self._here, self._scratch / f"{run}-copy", self._without) if self._isolate else None

    def tell_written(self, say: Callable[[str], None]) -> None:
        """Says which files the first run has written here, where the second one will find them."""
        if self._isolate:
            return
        own = {str(path.relative_to(self._here)) for path in output_files() if self._here in path.parents}
        written = [
            name
            for name in changed_files(self._before, snapshot(self._here, self._without))
            if name not in own
        ]
        if not written:
            return
        named = ", ".join(written[:_FILES_NAMED])
        more = f" and {len(written) - _FILES_NAMED} more" if len(written) > _FILES_NAMED else ""
        self.written = f"{named}{more}"
        say(
            f"the script also wrote {self.written} here. The next run finds that, and writes it again: if that "
            "matters, use --isolate"
        )


def snapshot(directory: Path, without: Collection[Path] = ()) -> Snapshot | None:
    """Notes time and size of every file below a directory; None if there are more than `MOST_FILES`.

    Args:
        directory: where to look.
        without: folders that are passed over, as absolute paths.
    """
    found: Snapshot = {}
    for path in _files(directory, without):
        try:
            status = path.stat()
        except OSError:
            continue
        found[str(path.relative_to(directory))] = (status.st_mtime_ns, status.st_size)
        if len(found) > MOST_FILES:
            return None
    return found


def changed_files(before: Snapshot | None, after: Snapshot | None) -> list[str]:
    """Names the files that were written between two looks; none where one look was given up."""
    if before is None or after is None:
        return []
    return sorted(name for name, status in after.items() if before.get(name) != status)


def copy_of(directory: Path, target: Path, without: Collection[Path] = ()) -> Path:
    """Copies a working directory, without what `_PASSED_OVER` names and the folders `without`, absolute paths.

    Raises:
        click.UsageError: It is larger than `LARGEST_COPY`, or cannot be read.
    """
    size = 0
    for path in _files(directory, without):
        try:
            size += path.lstat().st_size
        except OSError:
            continue
        if size > LARGEST_COPY:
            raise click.UsageError(
                f"Expected a working directory of at most {LARGEST_COPY >> 20} MiB for --isolate. Received: "
                f"{directory}, which is larger. Start the drill in a directory that holds only what the script needs."
            )
    try:
        shutil.copytree(
            directory,
            target,
            symlinks=True,
            ignore=lambda folder, names: [
                name for name in names if name in _PASSED_OVER or Path(folder, name).resolve() in without
            ],
        )
    except (OSError, shutil.Error) as error:
        raise click.UsageError(
            f"The working directory {directory} cannot be copied for --isolate: {error}"
        ) from None
    return target


def _files(directory: Path, without: Collection[Path]) -> Iterator[Path]:
    for folder, names, files in os.walk(directory):
        names[:] = [
            name for name in names if name not in _PASSED_OVER and Path(folder, name).resolve() not in without
        ]
        for name in files:
            yield Path(folder, name)
