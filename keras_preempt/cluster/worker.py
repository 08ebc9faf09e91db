"""One worker process of a local cluster, with the two threads that read its output and wait for its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["WorkerProcess"]

_LEASH = Path(__file__).with_name("leash.py")
_LONGEST_LINE = 1 << 16  # bytes; a longer line is handed on in pieces, so that memory stays bounded
_OUTPUT_TAIL = 5.0  # seconds for the last lines to come through once the process is gone


class WorkerProcess:
    """A child process in a session of its own that ends no later than its launcher.

    Args:
        index: the worker's number, from 0.
        command: program and arguments.
        env: the complete environment of the process.
        on_line: called with (index, line without its newline) for each line of stdout or stderr.
        on_exit: called with the worker once its exit code is known and its output was read.
        cwd: working directory; the launcher's own if None.
    """

    def __init__(
        self,
        index: int,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        on_line: Callable[[int, str], None],
        on_exit: Callable[[WorkerProcess], None],
        cwd: Path | None = None,
    ):
        self.index = index
        self.exit_code: int | None = None
        self.exited_at: float | None = None
        self.ended_by_launcher = False
        self.finished = False  # The exit code is known AND the output was read.
        self._command = list(command)
        self._env = dict(env)
        self._cwd = cwd
        self._on_line = on_line
        self._on_exit = on_exit
        # Re-entrant: a signal handler of the launcher's main thread may signal the worker while that same
        # thread is already doing so.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_error: OSError | None = None
        self._started = threading.Event()
        self._attendant = threading.Thread(target=self._attend, name=f"worker-{index}", daemon=True)

    @property
    def pid(self) -> int:
        """Process id (also of the process group and the session), or 0 before the start."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Starts the process.

        Raises:
            OSError: the operating system cannot start one.
        """
        self._attendant.start()
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def signal(self, number: int, *, group: bool = False) -> bool:
        """Sends a signal to the process, or to its whole group; returns False if it is gone already."""
        # The exit is collected under the same lock, so the id cannot belong to another process by now.
        with self._lock:
            if self._process is None or self.exit_code is not None:
                return False
            try:
                (os.killpg if group else os.kill)(self._process.pid, number)
            except ProcessLookupError:
                return False
            return True

    def join(self, timeout: float) -> bool:
        """Waits for the threads to end; returns False if they have not after ``timeout`` seconds."""
        if self._attendant.ident is not None:
            self._attendant.join(timeout)
        return not self._attendant.is_alive()

    def _attend(self) -> None:
        # The process is started from the thread that lives as long as it does: the kernel sends the death
        # signal of the leash when the starting THREAD ends, not the process.
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        except OSError as error:
            self._start_error = error
            self._started.set()
            return
        reader = threading.Thread(
            target=self._read, args=(process,), name=f"worker-{self.index}-output", daemon=True
        )
        reader.start()
        self._process = process
        self._started.set()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            # What the worker left behind in its group goes with it. It is not collected yet, so that the
            # number of the group is still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            exit_code = process.wait()
            self.exited_at = time.monotonic()
            self.exit_code = exit_code
        # A process that left the group may hold the pipe open for ever, so this wait has a bound.
        reader.join(_OUTPUT_TAIL)
        self.finished = True
        self._on_exit(self)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            while piece := output.readline(_LONGEST_LINE):
                self._on_line(self.index, piece.decode("utf-8", "replace").rstrip("\r\n"))
