"""The file that an export writes: there completely, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.cli.inspect_tables import bytes_in_words
from keras_preempt.state.saved_weights import Weights

__all__ = ["CannotWrite", "told", "written_whole"]

_NAMED = 5


class CannotWrite(click.ClickException):
    """The file cannot be written."""

    exit_code = 4


@contextlib.contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Gives the name of a file to write, which becomes `out` when the block ends without an exception.

    Raises:
        CannotWrite: the disk is full, or gives no permission.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".tmp-export-", dir=out.parent) as folder:
            unfinished = Path(folder) / out.name
            yield unfinished
            with open(unfinished, "rb") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, out)
    except OSError as error:
        raise CannotWrite(
            f"Expected to write {str(out)!r}. Received: {error.strerror or error}. Choose another folder, or make room."
        ) from None


def told(out: Path, step: int, directory: str, weights: Weights, left_out: Sequence[str] = ()) -> list[str]:
    """Returns what to say of an export, in lines."""
    size = sum(value.nbytes for value in weights.values.values())
    lines = [f"{out}: {len(weights.values)} weights ({bytes_in_words(size)}) of step {step} in {directory}"]
    ways: dict[str, list[str]] = {}
    for name, how in weights.combined.items():
        ways.setdefault(how, []).append(name)
    for how, names in ways.items():
        lines.append(f"  different on the replicas, {how}: {_some(names)}")
    if left_out:
        lines.append(f"  left out, since the format has no strings: {_some(left_out)}")
    return lines


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(one_line, names[:_NAMED]))
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
