"""Worker processes of a local cluster that come from a fork server, with Keras and its backend imported already."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from keras_preempt.cluster import LocalCluster
from keras_preempt.cluster.worker import WorkerProcess
from tests.cluster.forked_python import ask

#: Quiet, on the CPU, and one computing thread per worker: the machine's cores are shared by all of them. A crash in C
#: code shows where Python was.
QUIET_CPU = {
    "PYTHONFAULTHANDLER": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_PREEMPT_PLATFORM": "generic",
}

BACKENDS = ("torch",) if os.environ.get("KERAS_BACKEND") == "torch" else ("tensorflow", "jax")
"""Those that a fork server is started for: a run of tests on torch alone has no TensorFlow."""

_PROGRAM = Path(__file__).with_name("fork_server.py")
_PYTHON = Path(__file__).with_name("forked_python.py")
_READY_SECONDS = 60.0
_FOLDER = "FORK_SERVERS"
"""The environment variable with the folder of the servers' sockets, for all processes of a run."""


class ForkServers:
    """The fork servers of a test run, one for each backend of Keras. They serve this process and all that it starts."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="forks-")
        # What one process of the run has compiled for JAX, the others load, as docs/jax.md recommends it for restarts.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(self._folder, "compiled"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        self._servers = [self._start(backend) for backend in BACKENDS]
        for server in self._servers:
            assert server.stdout is not None
            assert select.select([server.stdout], [], [], _READY_SECONDS)[0], "a fork server does not start"
            assert server.stdout.readline() == b"ready\n", "a fork server did not start"
        os.environ[_FOLDER] = self._folder

    def _start(self, backend: str) -> subprocess.Popen[bytes]:
        # What TensorFlow reads while it is imported is the same for all jobs.
        environment = {**os.environ, **QUIET_CPU, "KERAS_BACKEND": backend}
        environment.pop("PYTHONUNBUFFERED", None)  # Each job says for itself.
        return subprocess.Popen(
            [sys.executable, str(_PROGRAM), _socket(self._folder, backend)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the servers and every job that still runs."""
        os.environ.pop(_FOLDER, None)
        for server in self._servers:
            assert server.stdin is not None
            server.stdin.close()
        for server in self._servers:
            try:
                server.wait(30.0)
            finally:
                server.kill()
                assert server.stdout is not None
                server.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _socket(folder: str, backend: str) -> str:
    """The name of a server's abstract socket: the path of a file could be too long for one."""
    return f"{os.path.basename(folder)}/{backend}"


_starting = threading.Lock()


def _address(backend: str) -> str:
    """The socket of the run's server for a backend; a program that is no test run starts its own servers."""
    with _starting:
        if _FOLDER not in os.environ:
            atexit.register(ForkServers().close)
        return _socket(os.environ[_FOLDER], backend)


def python() -> list[str]:
    """``python`` for a command that a shell or a terminal starts: see `tests.cluster.forked_python`."""
    return [sys.executable, "-I", "-S", str(_PYTHON), _address("tensorflow")]


class ForkedWorker(WorkerProcess):
    """A `WorkerProcess` whose command, ``python script arguments...``, is run by the fork server."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sending = threading.RLock()

    def kill_all(self) -> None:
        with self._sending, contextlib.suppress(ProcessLookupError):
            if self.pid and self.exit_code is None:
                os.killpg(self.pid, signal.SIGKILL)

    def signal_command(self, number: int) -> bool:
        return self.signal(number)  # The command itself is what trains.

    def _send(self, number: int) -> bool:
        with self._sending:
            if not self.pid or self.exit_code is not None:
                return False
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return False
            return True

    def _attend(self) -> None:
        read, write = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                server = _address(self.env.get("KERAS_BACKEND", "tensorflow"))
                folder = str(self._cwd or os.getcwd())
                ask(client, server, self._command[1:], self.env, folder, {1: write, 2: write})
                os.close(write)
                with client.makefile("r") as answers:
                    self._follow(_Forked(int(answers.readline()), read), answers)
        except (OSError, AssertionError, ValueError) as error:  # No server, or none any more.
            self._start_error = OSError(f"the fork server gave no process: {error}")
        finally:
            self._started.set()

    def _follow(self, process: _Forked, answers: Any) -> None:
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reader.start()
        self.pid = process.pid
        self._started.set()
        code = int(answers.readline() or -signal.SIGKILL)
        with self._sending:
            self._ended(code)
        reader.join(5.0)
        self.finished = True
        self._on_exit(self)


class _Forked:
    """What `WorkerProcess` needs of a process."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, "rb")


class ForkedCluster(LocalCluster):
    """A `LocalCluster` of forked workers."""

    worker_type = ForkedWorker
