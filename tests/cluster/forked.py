"""Worker processes of a local cluster that come from a fork server, with Keras and its backend imported already."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_preempt.cluster import LocalCluster
from keras_preempt.cluster.worker import WorkerProcess

#: Quiet, on the CPU, and one computing thread per worker: the machine's cores are shared by all of them.
QUIET_CPU = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_PREEMPT_PLATFORM": "generic",
}

_PROGRAM = Path(__file__).with_name("fork_server.py")
_READY_SECONDS = 300.0


class ForkServer:
    """The fork server of this process.

    Args:
        env: Its environment; what TensorFlow reads while it is imported is the same for all jobs.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="forks-")
        self.address = os.path.join(self._folder, "server")
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        timer = threading.Timer(_READY_SECONDS, self._process.kill)
        timer.start()
        ready = self._process.stdout.readline()
        timer.cancel()
        timer.join()
        assert ready == b"ready\n", "the fork server did not start"

    def close(self) -> None:
        """Ends the server and every job that still runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30.0)
        finally:
            self._process.kill()
            self._process.stdout.close()
            shutil.rmtree(self._folder, ignore_errors=True)


_servers: dict[str, ForkServer] = {}
_starting = threading.Lock()


def fork_server(backend: str) -> ForkServer:
    """Returns the server of this process whose jobs run Keras on a backend; it ends with the process."""
    with _starting:
        if backend not in _servers:
            _servers[backend] = _start_server(backend)
        return _servers[backend]


def _start_server(backend: str) -> ForkServer:
    server = ForkServer({**os.environ, **QUIET_CPU, "KERAS_BACKEND": backend})
    atexit.register(server.close)
    return server


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
                client.connect(fork_server(self._env.get("KERAS_BACKEND", "tensorflow")).address)
                request = {
                    "script": os.path.abspath(self._command[1]),
                    "args": self._command[2:],
                    "env": self._env,
                    "cwd": str(self._cwd or os.getcwd()),
                }
                socket.send_fds(client, [json.dumps(request).encode() + b"\n"], [write])
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
