"""What the commands print: coloured on a terminal, plain text everywhere else."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Collection
from typing import IO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Terminal"]

_WORKER_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_PLAIN_WIDTH = 200  # columns of a table in a file or a pipe, where nothing has to fit on a screen


_UNREADY = re.compile(r"I0000 \d\d:\d\d:\d+\.\d+|WARNING: All log messages before absl::InitializeLog")


def is_silenced(line: str, level: str) -> bool:
    """Whether TensorFlow was told not to write a line that it wrote all the same.

    Its libraries log a few lines while they load, before they look at TF_CPP_MIN_LOG_LEVEL.

    Args:
        line: What a worker wrote.
        level: The value of TF_CPP_MIN_LOG_LEVEL; 1 and above silence information.
    """
    return level in ("1", "2", "3") and _UNREADY.match(line) is not None


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves it to `Terminal`; rich would end the program with status 1."""
        raise BrokenPipeError


class Terminal:
    """Writes workers' lines, the launcher's own lines and tables to one stream, from any thread.

    A reader that goes away (``keras-preempt run ... | head``) does not end training: the output is dropped.
    """

    def __init__(self, stream: IO[str] | None = None):
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        self._closed = False
        self._console = _Console(
            file=self._stream, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH

    def worker_line(self, index: int, line: str) -> None:
        """Writes a worker's line after its prefix; of a line rewritten in place, only its last state."""
        if is_silenced(line, os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")):
            return
        self._print(Text(f"[w{index}] ", style=_WORKER_COLOURS[index % len(_WORKER_COLOURS)]), _visible(line))

    def say(self, line: str, style: str = "") -> None:
        """Writes one of the launcher's own lines."""
        self._print(Text("[keras-preempt] ", style="bold"), line, style)

    def line(self, line: str, style: str = "") -> None:
        """Writes a line of a report, without a prefix."""
        self._print(Text(), line, style)

    def table(
        self, title: str, columns: list[str], rows: list[list[str]], *, left: Collection[str] = ()
    ) -> None:
        """Writes a table; all columns but the first, and those named in `left`, are aligned to the right."""
        decorated = self._console.is_terminal
        table = Table(
            title=title,
            title_justify="left",
            box=SIMPLE if decorated else None,
            pad_edge=False,
            show_header=any(columns),
        )
        for position, column in enumerate(columns):
            table.add_column(column, justify="left" if position == 0 or column in left else "right")
        for row in rows:
            table.add_row(*row)
        self._guarded(lambda: self._console.print(table))

    def _print(self, prefix: Text, line: str, style: str = "") -> None:
        if self._console.is_terminal:
            text = Text.assemble(prefix, Text.from_ansi(line, style=style) if line else "")
            self._guarded(lambda: self._console.print(text))
        else:
            self._guarded(lambda: self._write(f"{prefix.plain}{line}\n"))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _guarded(self, write: object) -> None:
        assert callable(write)
        with self._lock:
            if self._closed:
                return
            try:
                write()
            except BrokenPipeError:
                self._closed = True
                # What is still buffered has to go somewhere when the interpreter flushes it at exit.
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), self._stream.fileno())


def _visible(line: str) -> str:
    shown = [piece for piece in line.split("\r") if piece]
    return shown[-1] if shown else ""
