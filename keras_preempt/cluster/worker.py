"""One worker process of a local cluster, with the threads that read its output and wait for its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from keras_preempt.cluster.keeper import KILL_ALL, TO_COMMAND, descendants, of_session
from keras_preempt.process.environment import STATUS_DIR, WORKER
from keras_preempt.report.status import process_file

_KEEPER = Path(__file__).with_name("keeper.py")
_LONGEST_LINE = 1 << 16  # bytes; a longer line is passed on in pieces, so that memory stays bounded
LEFT_BEHIND = "keras-preempt: ending what the command has left behind: "
"""The beginning of the line that names the processes that the keeper ends, after the worker's own output."""

UNHEARD_GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL for a worker that does not listen for notices: what Kubernetes and Slurm give."""

_KILLED = 10.0  # seconds for a keeper to end once it was told to kill
_OUTPUT_TAIL = 5.0  # seconds to read the last lines once the process is gone


class Kept:
    """A command and its keeper, started, and the socket to the keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.keeper = keeper
        self.control = control

    def end(self) -> None:
        """Ends a command that is no worker, and everything that it has started."""
        with self.control, contextlib.suppress(OSError):
            self.control.sendall(bytes([KILL_ALL]))
        try:
            self.keeper.wait(_KILLED)
        except subprocess.TimeoutExpired:
            self.keeper.kill()  # The kernel kills the command.
            self.keeper.wait()
        if self.keeper.stdout is not None:
            self.keeper.stdout.close()


def launch(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    listening: str,
    unheard_grace: float,
    keep: int | None = None,
) -> Kept:
    """Starts a command with a keeper.

    Args:
        command: Program and arguments.
        env: The complete environment.
        cwd: Working directory; this process's own if None.
        listening: The file in which the process that listens for notices names itself; empty: there is none.
        unheard_grace: See `keeper`.
        keep: A descriptor that the command inherits.

    Raises:
        OSError: The operating system cannot start a process.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=[theirs.fileno(), *([] if keep is None else [keep])],
            )
    except BaseException:
        ours.close()
        raise
    request = {"command": [*command], "listening": listening, "unheard_grace": unheard_grace, "keep": keep}
    with contextlib.suppress(OSError):  # The keeper is gone, which is noticed when it is waited for.
        ours.sendall(json.dumps(request).encode() + b"\n")
    return Kept(keeper, ours)


class StartedAhead(Protocol):
    """Processes that may become workers; see `standby.Standbys`."""

    def take(self, index: int, environment: Mapping[str, str]) -> Kept | None:
        """Returns a process that has become this worker; None if there is none, and one has to be started."""
        ...

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the environment for a worker that has to be started."""
        ...


class WorkerProcess:
    """A command in a session of its own, which ends with everything that it has started when its launcher ends.

    A small keeper process stands between the two, see `keeper`. `env` is the complete environment. `on_line` is called
    with (index, line without its newline), `on_exit` once the exit code is known and the output has been read.
    """

    def __init__(
        self,
        index: int,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        on_line: Callable[[int, str], None],
        on_exit: Callable[[WorkerProcess], None],
        unheard_grace: float = UNHEARD_GRACE,
        cwd: Path | None = None,
    ):
        self.index = index
        self.pid = 0  # Of the command, and also of its process group; 0 before the start.
        self.exit_code: int | None = None
        self.exited_at: float | None = None
        self.ended_by_launcher = False
        self.finished = False  # The exit code is known and the output has been read.
        self.ahead: StartedAhead | None = None
        self._command = list(command)
        self.env = {**env, WORKER: str(index)}
        self._cwd = cwd
        self._on_line = on_line
        self._on_exit = on_exit
        self._unheard_grace = unheard_grace
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._start_error: OSError | None = None
        self._started = threading.Event()
        self._attendant = threading.Thread(target=self._attend, name=f"worker-{index}", daemon=True)

    def start(self) -> None:
        """Raises OSError if the operating system cannot start a process."""
        self._attendant.start()
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def signal(self, number: int) -> bool:
        """Sends a signal to the training process; see `LocalCluster.signal`. Safe in a signal handler."""
        return self.exit_code is None and self._send(number)

    def signal_command(self, number: int) -> bool:
        """Sends a signal to the command itself and to nothing else."""
        return self.exit_code is None and self._send(TO_COMMAND + number)

    def processes(self) -> dict[int, str]:
        """The names of the processes that the command and what it has started are now, by their ids."""
        keeper = self._keeper
        return {} if keeper is None or self.exit_code is not None else descendants(keeper.pid) or {}

    def kill_all(self) -> None:
        """Kills the command and everything that it has started, even if the command itself has ended."""
        self._send(KILL_ALL)

    def join(self, timeout: float) -> bool:
        """Waits for the threads to end; returns False if they have not after ``timeout`` seconds."""
        if self._attendant.ident is not None:
            self._attendant.join(timeout)
        return not self._attendant.is_alive()

    def abandon(self) -> None:
        """Kills the keeper, if it does not answer. The kernel then kills the command."""
        if self._keeper is not None:
            self._keeper.kill()

    def _send(self, number: int) -> bool:
        if self._control is None:
            return False
        try:
            # One byte in one call, which no signal handler can interrupt half-way.
            self._control.send(bytes([number]), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def _attend(self) -> None:
        try:
            kept = None if self.ahead is None else self.ahead.take(self.index, self.env)
            if kept is None:
                env = self.env if self.ahead is None else self.ahead.environment(self.env)
                folder = self.env.get(STATUS_DIR)
                listening = str(Path(folder, process_file(self.index))) if folder else ""
                kept = launch(self._command, env, self._cwd, listening, self._unheard_grace)
        except OSError as error:
            self._start_error = error
            self._started.set()
            return
        self._keeper = keeper = kept.keeper
        self._control = kept.control  # Before its output is read: who reads that it trains may signal it.
        assert keeper.stdout is not None
        name = f"worker-{self.index}-output"
        reader = threading.Thread(target=self._read, args=(keeper.stdout,), name=name, daemon=True)
        reader.start()
        with kept.control:
            self._follow(keeper, kept.control)
        # Only a process that hangs in the kernel can still hold the pipe, so this wait has a bound.
        reader.join(_OUTPUT_TAIL)
        self.finished = True
        self._on_exit(self)

    def _follow(self, keeper: subprocess.Popen[bytes], control: socket.socket) -> None:
        """Reads what the keeper says until it ends."""
        with control.makefile("rb") as words, contextlib.suppress(OSError):
            for word in words:
                what, _, rest = word.decode("utf-8", "replace").strip().partition(" ")
                if what == "started":
                    self.pid = int(rest)
                    self._started.set()
                elif what == "ended":
                    self._ended(int(rest))
                elif what == "left":
                    self._on_line(self.index, f"{LEFT_BEHIND}{rest}")
                elif what == "unheard":
                    self._on_line(
                        self.index,
                        f"keras-preempt: killed: it does not listen for notices, and still ran {rest} s after SIGTERM",
                    )
        os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
        if self.exit_code is None:
            # The keeper was killed, and the command with it. It has not been reaped: the session id is still its own.
            for pid in of_session(keeper.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        code = keeper.wait()
        if self.exit_code is None:
            self._ended(code)
        self._control = None
        self._started.set()

    def _ended(self, code: int) -> None:
        self.exited_at = time.monotonic()
        self.exit_code = code

    def _read(self, output: IO[bytes]) -> None:
        with output:
            while piece := output.readline(_LONGEST_LINE):
                self._on_line(self.index, piece.decode("utf-8", "replace").rstrip("\r\n"))
