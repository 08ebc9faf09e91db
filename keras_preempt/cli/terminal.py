"""Prints the output of the commands: in colour on a terminal, as plain text elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
import threading
import time
from collections.abc import Collection
from typing import IO

import click
from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_WORKER_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_PLAIN_WIDTH = 200  # columns of a table in a file or pipe, which has to fit on no screen
_UNREADY = re.compile(r"I0000 \d\d:\d\d:\d+\.\d+|WARNING: All log messages before absl::InitializeLog")
_PIECE = 512  # bytes; a pipe that is ready takes as many without blocking (POSIX's least PIPE_BUF)
_HURRIED = 0.2  # seconds that a reader has to take a piece once the job was told to stop
_LOOK = 50  # milliseconds between two looks at whether the job was told to stop


def is_silenced(line: str, level: str) -> bool:
    """Whether TF_CPP_MIN_LOG_LEVEL=`level` silences a line that TensorFlow wrote all the same.

    Its libraries log a few lines while they load, before they read that variable.
    """
    return level in ("1", "2", "3") and _UNREADY.match(line) is not None


def shown_size(size: float) -> str:
    """Returns a size such as "1.2 MB"; units of a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


class OutputLost(click.ClickException):
    pass


class Terminal:
    """Writes workers' lines, the launcher's own lines and tables to one stream, from any thread.

    If the reader goes away (``keras-preempt report ... | head``), the output is dropped. So it is with any other output
    error of a job, such as a full disk or a terminal that is gone, which is then reported on standard error. Without a
    job, the command exists for its output, and such an error ends it: any method may raise `OutputLost`.

    `stream` is by default standard output, which may be closed. `job`: a job runs that is worth more than its output.
    """

    def __init__(self, stream: IO[str] | None = None, *, job: bool = False):
        self._stream = stream or sys.stdout
        self._job = job
        self._lock = threading.Lock()
        self._closed = False
        self._output: Output | None = None
        if self._stream is None or self._stream.closed:
            self._lose("it is closed")
        else:
            with contextlib.suppress(OSError, ValueError):  # A stream in memory has no descriptor.
                self._output = Output(self._stream.fileno())
        self._console = Console(
            file=_Rendered(self._stream), highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH

    def hurry(self) -> None:
        """Drops from now on what no reader takes at once, since the job was told to stop. Safe in a signal handler."""
        if self._output is not None:
            self._output.hurry()

    @property
    def lost(self) -> bool:
        """Whether nobody reads the output any more."""
        return self._closed or (self._output is not None and self._output.is_broken)

    def worker_line(self, index: int, line: str) -> None:
        """Writes a worker's line after its prefix; of a line that is rewritten in place, only the last state."""
        if is_silenced(line, os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")):
            return
        states = [state for state in line.split("\r") if state] or [""]
        colour = _WORKER_COLOURS[index % len(_WORKER_COLOURS)]
        self._print(Text(f"[w{index}] ", style=colour), states[-1])

    def say(self, line: str, style: str = "") -> None:
        """Writes a line of the launcher."""
        self._print(Text("[keras-preempt] ", style="bold"), line, style)

    def line(self, line: str, style: str = "") -> None:
        """Writes a line of a report, without a prefix."""
        self._print(Text(), line, style)

    def table(
        self, title: str, columns: list[str], rows: list[list[str]], *, left: Collection[int] = ()
    ) -> None:
        """Writes a table; all columns but the first, and those at the positions `left`, are aligned to the right."""
        table = Table(
            title=title,
            title_justify="left",
            box=SIMPLE if self._console.is_terminal else None,
            pad_edge=False,
            show_header=any(columns),
        )
        for position, column in enumerate(columns):
            table.add_column(column, justify="left" if position == 0 or position in left else "right")
        for row in rows:
            table.add_row(*row)
        self._render(table)

    def _print(self, prefix: Text, line: str, style: str = "") -> None:
        if self._console.is_terminal:
            self._render(Text.assemble(prefix, Text.from_ansi(line, style=style) if line else ""))
        else:
            with self._lock:
                self._write(f"{prefix.plain}{line}\n")

    def _render(self, what: RenderableType) -> None:
        with self._lock:
            with self._console.capture() as captured:
                self._console.print(what)
            self._write(captured.get())

    def _write(self, text: str) -> None:
        """Called with the lock held."""
        if self._closed:
            return
        assert self._stream is not None
        try:
            if self._output is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                self._stream.flush()
                encoding = getattr(self._stream, "encoding", None) or "utf-8"
                self._output.write(text.encode(encoding, "backslashreplace"))
        except (OSError, ValueError) as error:  # ValueError: the stream was closed.
            self._lose(str(getattr(error, "strerror", None) or error), isinstance(error, BrokenPipeError))

    def _lose(self, why: str, unread: bool = False) -> None:
        self._closed = True
        if self._stream is not None:
            # The interpreter flushes what is still buffered at exit, and must not fail then.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        if self._job:
            message = f"Standard output is lost ({why}). The job goes on, and its output is dropped."
            with contextlib.suppress(OSError, ValueError):
                poll = select.poll()
                poll.register(2, select.POLLOUT)
                if poll.poll(0):  # Standard error takes it at once.
                    os.write(2, f"keras-preempt: {message}\n".encode())
        elif not unread and self._stream is not None:
            raise OutputLost(f"Expected to write to standard output. Received: {why}.")


class _Rendered(io.StringIO):
    """Stands in for a stream where its console renders what is then written by `Output`.

    The console must not touch the stream itself: even when it only captures, it flushes, and a terminal may be gone.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__()
        self._terminal = False
        with contextlib.suppress(OSError, ValueError):
            self._terminal = stream is not None and stream.isatty()

    def isatty(self) -> bool:
        return self._terminal


class Output:
    """Writes to a descriptor, which may be non-blocking, as fast as its reader reads, until `hurry` is called.

    A slow reader, such as a pager, slows down the writer. That is right while a job trains, and fatal when it has to
    save: its workers would wait forever in the middle of a line of output. After `hurry`, what cannot be written
    within a moment is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._hurried = self._dropping = False

    def hurry(self) -> None:
        """Stops waiting for readers. Safe in a signal handler, and from any thread."""
        self._hurried = True

    def write(self, data: bytes) -> None:
        """Writes all of it, or drops the rest if that takes too long. `OSError`: such as a full disk, or no reader."""
        left = memoryview(data)
        while left and self._is_ready():
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._descriptor, left[:_PIECE]) :]

    @property
    def is_broken(self) -> bool:
        """Whether the descriptor is a pipe without a reader, or a terminal that is gone."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # Errors are reported in any case.
        return bool(poll.poll(0))

    def _is_ready(self) -> bool:
        until = None  # Also ready if it is closed or broken, which the write then reports.
        while not self._poll.poll(0 if self._dropping else _LOOK):
            if self._hurried:
                until = until or time.monotonic() + _HURRIED
                if self._dropping or time.monotonic() >= until:
                    self._dropping = True
                    return False
        self._dropping = False
        return True
