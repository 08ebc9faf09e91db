"""The command line in this process or as a real one, and ``run`` with workers that need no TensorFlow."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from keras_preempt.cli.main import main

ROOT = str(Path(__file__).parents[2])
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}

#: A worker that says that it listens, and what saving comes to, as the callback does; it leaves files where it was.
WORKER = """
import json, os, select, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {root!r})
from keras_preempt.report.status import Status, leave_file, listens
here = Path({here!r})
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: None)
member = json.loads(os.environ.get("TF_CONFIG", '{{"task": {{"index": 0}}}}'))["task"]["index"]
def until_signal():
    assert select.select([reader], [], [], 60)[0], "no signal came"
    return os.read(reader, 1)[0]
def until_go():
    while not (here / "go").exists():
        select.select([], [], [], 0.01)
def listen():
    listens(member)
    (here / f"listening-{{member}}").write_text(str(os.getpid()))
def saved(code=75, finished=False):
    leave_file(f"worker-{{member}}.json", {{"step": 7, "saved": code == 75, "exit_code": code, "finished": finished}})
    (here / f"saved-{{member}}").touch()
"""


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "keras_preempt.cli.main", *arguments]


def called(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Calls the command line in this process, with further variables."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env or {}),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


class Launched:
    """Starts launchers below a folder, and ends them.

    Attributes:
        folder: Where the script and its traces are.
        temporary: The temporary directory of all that is started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._started: list[subprocess.Popen[str]] = []

    def script(self, body: str) -> str:
        path = self.folder / "train.py"
        path.write_text(WORKER.format(root=ROOT, here=str(self.folder)) + body)
        return str(path)

    def run(
        self, *command: str, workers: int = 1, options: Sequence[str] = (), before: str = "", **how: Any
    ) -> subprocess.Popen[str]:
        """Starts it; `before` is a shell command that becomes the launcher, such as ``exec nohup "$@"``."""
        line = command_line("run", "--workers", str(workers), *options, "--", *command)
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **how}
        if before:
            line = ["sh", "-c", before, "sh", *line]
        env = {**ENV, "TMPDIR": str(self.temporary), **how.pop("env", {})}
        process = subprocess.Popen(line, text=True, env=env, **how)
        self._started.append(process)
        return process

    def train(
        self, body: str, line: str = "exec {train}", until: str = "listening-{worker}", **how: Any
    ) -> subprocess.Popen[str]:
        """Starts a worker behind a shell, and waits for a file that it, and each further worker, leaves."""
        train = shlex.join([sys.executable, self.script(body)])
        process = self.run("sh", "-c", line.format(train=train), **how)
        for worker in range(how.get("workers", 1) if until else 0):
            self.trace(until.format(worker=worker), process)
        return process

    @staticmethod
    def ended(process: subprocess.Popen[str], code: int) -> str:
        """Waits until it ends with a status; returns its output."""
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        return output

    def stopped(self, process: subprocess.Popen[str], code: int = 75, number: int = signal.SIGTERM) -> str:
        process.send_signal(number)
        return self.ended(process, code)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def trace(self, name: str, process: subprocess.Popen[str] | None = None, timeout: float = 60.0) -> Path:
        """Waits for a file that a worker leaves."""
        path = self.folder / name
        for _ in range(int(timeout * 100)):
            if path.exists() and (path.stat().st_size or not name.startswith("listening")):
                return path
            assert process is None or process.poll() is None, f"the launcher ended without {name}"
            select.select([], [], [], 0.01)  # A file cannot be waited for, only looked at.
        raise AssertionError(f"{name} did not come in {timeout:g} s")

    def left(self) -> Sequence[str]:
        """What is left in the temporary directory."""
        return sorted(path.name for path in self.temporary.iterdir())
