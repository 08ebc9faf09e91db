"""A cluster of worker processes on this machine."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from keras_preempt.cluster.tf_config import VARIABLES, tf_config_of, worker_environment
from keras_preempt.cluster.worker import UNHEARD_GRACE, StartedAhead, WorkerProcess
from keras_preempt.process.exit_codes import RESTART_CODES

_OUTPUT_TAIL = 10.0  # seconds for a worker whose keeper was killed

_LOOK_SECONDS = 1.0

_ADDRESS_IN_USE = re.compile(
    r"address (is )?already in use|EADDRINUSE|could not start grpc server", re.IGNORECASE
)


def default_prefix(index: int) -> str:
    """The prefix of each line of worker ``index`` in a log file."""
    return f"[w{index}] "


@dataclass(frozen=True)
class WorkerExit:
    """How one worker ended.

    Attributes:
        index: The worker's number, from 0.
        code: Exit code; negative for the signal that ended it, as in ``subprocess``.
        at: When it ended, in seconds of ``time.monotonic``.
        by_launcher: True if the launcher ended it after another worker had failed, or to clean up.
    """

    index: int
    code: int
    at: float
    by_launcher: bool = False


class LocalCluster:
    """Starts ``workers`` processes that can find each other, and always ends them.

    Two or more workers get the description of their cluster with free ports of 127.0.0.1, both for TensorFlow
    (``TF_CONFIG``) and for ``keras.distribution.initialize``, since the script chooses its backend; see
    `worker_environment`. One worker gets none, nor does it inherit one: it is a plain job of one process. Use it as a
    context manager: when the block ends, whatever still runs is ended. The workers also end when this process is
    killed.

    Example:
        >>> with LocalCluster(2, ["python", "train.py"], log=sys.stdout) as cluster:
        ...     codes = [exit.code for exit in cluster.wait(timeout=600)]

    Args:
        workers: Number of processes, at least 1.
        command: Program and arguments, the same for all.
        env: Environment variables on top of this process's own; None as a value removes one.
        worker_env: More of them for single workers, by index.
        log: Called with (index, line) from reader threads, one at a time; or a text file, which gets ``prefix`` before
            each line; None to drop the output.
        on_exit: Called from a thread with the index of each worker that has ended, once its output was read.
        prefix: Returns the prefix of a worker's lines in a log file.
        unheard_grace: Seconds after SIGTERM until a worker that does not listen for notices, and has not ended, is
            killed.
        cwd: Working directory; this process's own if None.
        ahead: Where workers come from that need not be started, if there are any.

    Raises:
        ValueError: There is less than one worker, or the command is empty.
    """

    worker_type = WorkerProcess
    """The class that starts and ends one worker."""

    def __init__(
        self,
        workers: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        worker_env: Mapping[int, Mapping[str, str | None]] | None = None,
        log: Callable[[int, str], None] | TextIO | None = None,
        prefix: Callable[[int], str] = default_prefix,
        on_exit: Callable[[int], None] | None = None,
        unheard_grace: float = UNHEARD_GRACE,
        cwd: Path | None = None,
        ahead: StartedAhead | None = None,
    ):
        if workers < 1:
            raise ValueError(f"Expected at least 1 worker. Received: workers={workers}.")
        if not command:
            raise ValueError("Expected a command to run in each worker. Received: an empty one.")
        self.addresses = [f"127.0.0.1:{port}" for port in find_free_ports(workers)] if workers > 1 else []
        self.address_in_use = False
        self._log = log
        self._prefix = prefix
        self._on_exit = on_exit
        self._log_lock = threading.Lock()
        self._changed = threading.Condition()
        self._running = 0
        self._workers = []
        for index in range(workers):
            worker = self.worker_type(
                index,
                command,
                self._environment(index, env or {}, (worker_env or {}).get(index, {})),
                on_line=self._write,
                on_exit=self._exited,
                unheard_grace=unheard_grace,
                cwd=cwd,
            )
            worker.ahead = ahead
            self._workers.append(worker)

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill_all(grace=0)

    def start(self) -> None:
        """Starts all workers. If one cannot be started, the others are ended, and OSError is raised."""
        try:
            for worker in self._workers:
                with self._changed:
                    self._running += 1
                try:
                    worker.start()
                except OSError:
                    with self._changed:
                        self._running -= 1
                    raise
        except BaseException:
            self.kill_all(grace=0)
            raise

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the commands by worker; each is also the id of its process group."""
        return [worker.pid for worker in self._workers]

    @property
    def environments(self) -> list[Mapping[str, str]]:
        """The environments of the workers."""
        return [worker.env for worker in self._workers]

    @property
    def exits(self) -> list[WorkerExit]:
        """The exits of the workers that have ended so far, in that order."""
        found = [
            WorkerExit(worker.index, worker.exit_code, worker.exited_at, worker.ended_by_launcher)
            for worker in self._workers
            if worker.exit_code is not None and worker.exited_at is not None
        ]
        return sorted(found, key=lambda exit: exit.at)

    def signal(self, index: int, number: int) -> bool:
        """Sends a signal to the training process of one worker; returns False if the worker is gone already.

        Until some process of the worker listens for notices, which may be behind a shell, the signal goes to the
        command. SIGUSR1 and SIGUSR2 go as SIGTERM to a process that has no handler for them. SIGKILL ends all processes
        of the worker.
        """
        return self._workers[index].signal(number)

    def signal_command(self, index: int, number: int) -> bool:
        """Sends a signal to the command of one worker, as a machine would; returns False if it is gone already."""
        return self._workers[index].signal_command(number)

    def signal_all(self, number: int) -> None:
        """Sends a signal to every worker that still runs; see `signal`. Safe in a signal handler of the main thread."""
        for worker in self._workers:
            worker.signal(number)

    def wait(
        self,
        timeout: float | None = None,
        *,
        failure_grace: float | None = None,
        restart_codes: Collection[int] = RESTART_CODES,
        kill_grace: float = 10.0,
        look: Callable[[], object] | None = None,
    ) -> list[WorkerExit]:
        """Waits until every worker has ended.

        Args:
            timeout: Seconds; None waits for as long as it takes.
            failure_grace: Once a worker has failed (an exit code other than 0 and ``restart_codes``), the
                others have this many seconds to end by themselves, then they are terminated. None: no limit.
            restart_codes: Exit codes that are not failures.
            kill_grace: Seconds between SIGTERM and SIGKILL for those that are terminated.
            look: Called about once a second; it may end workers.

        Returns:
            The exits, in the order in which the workers ended.

        Raises:
            TimeoutError: Some still run after ``timeout`` seconds. They go on running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._running == 0:
                    return self.exits
                failures = [e.at for e in self.exits if e.code != 0 and e.code not in restart_codes]
                give_up = failures[0] + failure_grace if failures and failure_grace is not None else None
                look_at = None if look is None else time.monotonic() + _LOOK_SECONDS
                limits = [limit for limit in (deadline, give_up, look_at) if limit is not None]
                self._changed.wait(max(0.0, min(limits) - time.monotonic()) if limits else None)
                left = self._running
            now = time.monotonic()
            if left and look is not None:
                look()
            if left and give_up is not None and now >= give_up:
                self.kill_all(kill_grace)
            elif left and deadline is not None and now >= deadline:
                names = ", ".join(f"w{worker.index}" for worker in self._workers if not worker.finished)
                raise TimeoutError(
                    f"Expected every worker to end within {timeout:g} s. Received: {names} still running."
                )

    def processes(self, index: int) -> dict[int, str]:
        """The names of all processes of a worker by their ids; empty if it has ended, or the system has no /proc."""
        return self._workers[index].processes()

    def show(self, index: int, line: str) -> None:
        """Writes a line to the log as if the worker had written it."""
        self._write(index, line)

    def is_running(self, index: int) -> bool:
        """Whether the command of a worker has not ended."""
        return self._workers[index].exit_code is None

    def kill(self, index: int) -> None:
        """Kills one worker: all its processes."""
        if self._workers[index].exit_code is None:
            self._workers[index].ended_by_launcher = True
        self._workers[index].kill_all()

    def kill_all(self, grace: float = 0.0) -> None:
        """Ends every worker: SIGTERM, ``grace`` seconds later SIGKILL to all its processes (at once if 0).

        One that is stopped (SIGSTOP) continues, so that it can answer the SIGTERM.
        """
        for worker in self._workers:
            if worker.exit_code is None and worker.pid:
                worker.ended_by_launcher = True
        if grace > 0:
            self.signal_all(signal.SIGTERM)
            self.signal_all(signal.SIGCONT)
            with self._changed:
                self._changed.wait_for(lambda: self._running == 0, grace)
        for worker in self._workers:
            worker.kill_all()
        for worker in self._workers:
            if not worker.join(timeout=30.0):
                worker.abandon()
                worker.join(timeout=_OUTPUT_TAIL)

    def _exited(self, worker: WorkerProcess) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
        if self._on_exit is not None:
            self._on_exit(worker.index)

    def _write(self, index: int, line: str) -> None:
        with self._log_lock:
            if _ADDRESS_IN_USE.search(line):
                self.address_in_use = True
            if self._log is None:
                return
            if callable(self._log):
                self._log(index, line)
            else:
                self._log.write(f"{self._prefix(index)}{line}\n")
                self._log.flush()

    def _environment(self, index: int, *changes: Mapping[str, str | None]) -> dict[str, str]:
        environment = dict(os.environ)
        for name in VARIABLES:
            environment.pop(name, None)
        environment.setdefault("PYTHONUNBUFFERED", "1")  # So that lines are shown as they are written.
        if self.addresses:
            environment.update(worker_environment(tf_config_of(self.addresses, index)))
        for change in changes:
            for name, value in change.items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value
        return environment


# Below Linux's default range for outgoing connections (32768 to 60999), so that no connection opened between
# the probe and the worker's own bind can take the port away.
_LOWEST, _HIGHEST = 15_000, 32_000
_ATTEMPTS = 200

_random = random.SystemRandom()


def find_free_ports(count: int) -> list[int]:
    """``count`` ports of 127.0.0.1 that nobody listens on now; OSError if there are not so many."""
    found: list[int] = []
    # All stay bound until the last is found, so that none is found twice.
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", _random.randrange(_LOWEST, _HIGHEST)))
                    break
            else:
                probe.bind(("127.0.0.1", 0))  # The kernel chooses, and fails only when there is nothing left.
            found.append(int(probe.getsockname()[1]))
    return found
