"""Starts Python scripts in processes that have TensorFlow imported already; run as a program of its own.

Importing TensorFlow takes most of the time of a short job. This program imports it once, when the first job is asked
for, and forks for each job: a real process, with its own pid, session, signals and threads, that has run nothing of
TensorFlow yet. The package is imported, too. What the jobs of one server share besides is the seed of Python's hashes.

A client connects to the abstract socket named by the first argument, and sends one line of JSON (``script``, ``args``,
``env``, ``cwd``, ``streams``) with a descriptor for each of the standard streams that it names; the others are closed.
It gets two lines back: the pid, and when the job has ended, its exit code (negative for a signal, as in `subprocess`).
A client that goes away takes its job with it, and the end of standard input ends the server and all jobs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

_LONGEST_REQUEST = 1 << 20


@dataclass(frozen=True)
class _Job:
    pid: int
    pidfd: int
    client: socket.socket


class _Server:
    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._jobs: set[_Job] = set()

    def await_job(self) -> bool:
        """Waits until the first job is asked for; False at the end of standard input."""
        return any(key.data is not None for key, _ in self._selector.select())

    def serve(self) -> dict[str, Any] | None:
        """Returns None at the end of standard input; in the process of a job, what it is to run."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    for job in list(self._jobs):
                        self._end(job)
                    return None
                request = key.data()
                if request is not None:
                    return request

    def _accept(self) -> dict[str, Any] | None:
        client, _ = self._listener.accept()
        text, descriptors, _, _ = socket.recv_fds(client, _LONGEST_REQUEST, 2)
        while not text.endswith(b"\n"):
            text += client.recv(_LONGEST_REQUEST)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            self._forget()
            client.close()
            request: dict[str, Any] = json.loads(text)
            given = dict(zip(request["streams"], descriptors, strict=True))
            for stream in (1, 2):
                if stream in given:
                    os.dup2(given[stream], stream)
                else:
                    os.close(stream)
            for descriptor in descriptors:
                os.close(descriptor)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        job = _Job(pid, os.pidfd_open(pid), client)
        self._jobs.add(job)
        self._selector.register(job.pidfd, selectors.EVENT_READ, lambda: self._end(job))
        self._selector.register(client, selectors.EVENT_READ, lambda: self._end(job))
        client.sendall(f"{pid}\n".encode())
        return None

    def _end(self, job: _Job) -> None:
        if job not in self._jobs:
            return  # Its end and that of its client came together.
        self._jobs.remove(job)
        # What it has left behind in its group goes with it; the group's number is its own until it is collected.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGKILL)
        _, status = os.waitpid(job.pid, 0)
        for watched in (job.pidfd, job.client):
            self._selector.unregister(watched)
        os.close(job.pidfd)
        with contextlib.suppress(OSError), job.client:
            job.client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())

    def _forget(self) -> None:
        """Closes all that belongs to the server, in the process of a job."""
        self._selector.close()
        self._listener.close()
        for job in self._jobs:
            job.client.close()
            os.close(job.pidfd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _run(request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Tests in a shell's background would ignore it.
    os.environ.clear()
    os.environ.update(request["env"])
    # As Python begins: without the streams that are closed, and with lines or blocks written as they are asked for.
    for number, name in ((1, "stdout"), (2, "stderr")):
        if number not in request["streams"]:
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
        elif number == 1:
            sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in os.environ or os.isatty(1))
    random.seed()
    numpy.random.seed()
    for module in (failpoints, hooks):  # What they read when they are imported was the server's.
        importlib.reload(module)
    sys.argv = [request["script"], *request["args"]]
    sys.path[0] = os.path.dirname(request["script"])
    runpy.run_path(request["script"], run_name="__main__")


if __name__ == "__main__":
    _server = _Server(sys.argv[1])
    print("ready", flush=True)  # Not before it listens: whoever connects earlier is refused.
    if not _server.await_job():
        sys.exit()

    import google.cloud.storage
    import keras
    import numpy

    import keras_preempt.callback
    from keras_preempt.backend import seam
    from keras_preempt.checkpoint import failpoints
    from keras_preempt.drilled import hooks

    _on_torch = (
        os.environ.get("KERAS_BACKEND") == "torch"
    )  # Where there may be no TensorFlow, which the handler needs.
    _more = ["torch"] if _on_torch else ["tensorflow", "keras_preempt.handler"]
    _imported = (
        google.cloud.storage,
        keras,
        keras_preempt,
        numpy,
        seam.backend(),
        *map(importlib.import_module, _more),
    )
    gc.freeze()  # Jobs leave the pages of what is imported shared.
    _request = _server.serve()
    if _request is not None:
        _run(_request)
