"""One start of a job, with or without the launcher: its lines, its processes, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keras_preempt.cluster import WorkerExit
from tests.cluster.forked import QUIET_CPU
from tests.cluster.harness import RunningCluster, start_cluster

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
MARK = "KERAS_PREEMPT_TESTS_STORM"

STANDBY = "KERAS_PREEMPT_TESTS_STANDBY"
"""Whether the launcher has standbys, which get the signals to a worker, too."""

GRACE = 60.0
"""Seconds that the others have once a worker has failed: TensorFlow notices a loss after ten."""

HANG = 150
"""Seconds after which the launcher takes a worker for one that hangs. In no storm one does."""

LONGEST = 400.0
"""Seconds for one start. What takes longer hangs."""


class Workers:
    """Workers that somebody starts on machines, without the launcher; somebody also ends what a loss leaves over."""

    def __init__(self, workers: int, args: Sequence[str], env: Mapping[str, str | None]) -> None:
        self.workers = workers
        self._running: RunningCluster = start_cluster(SCRIPT, workers, args=args, env=env)
        self.exits: list[WorkerExit] = []
        self._pids = self._running.cluster.pids

    def lines(self, worker: int) -> list[str]:
        """What it has written so far."""
        return self._running.outputs[worker].splitlines()

    def ended(self) -> bool:
        """Whether none is there any more."""
        return len(self._running.cluster.exits) == self.workers

    def signal(self, worker: int, number: int) -> bool:
        """Sends a signal; returns whether there was somebody to get it."""
        return self._running.signal(worker, number)

    def wait(self) -> None:
        """Waits for the end of all."""
        try:
            self.exits = self._running.cluster.wait(LONGEST, failure_grace=GRACE, kill_grace=15.0)
        finally:
            self.close()

    def close(self) -> None:
        """Ends all."""
        self._running.close()

    def processes(self) -> list[str]:
        """What is left of them; processes of the data notice within seconds that the one that trains was killed."""
        killed = any(exit.code < 0 for exit in self.exits)
        return _left(lambda: [f"group {pid}" for pid in self._pids if _group_exists(pid)], killed=killed)


class Launch:
    """Workers under ``keras-preempt run``, a process of its own."""

    def __init__(self, workers: int, args: Sequence[str], env: Mapping[str, str | None], mark: str) -> None:
        self.workers = workers
        environment = {**os.environ, **QUIET_CPU, **{k: v for k, v in env.items() if v is not None}}
        path = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
        self._mark = mark
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "keras_preempt.cli.main", "run", "--workers", str(workers)),
                *("--max-failures", "9", "--max-restarts-without-progress", "9"),
                *("--failure-grace", str(GRACE), "--hang", f"{HANG}s"),
                *(["--standby"] if STANDBY in os.environ else []),
                *("--", sys.executable, str(SCRIPT), *args),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment, MARK: mark, "PYTHONPATH": path},
            start_new_session=True,
        )
        self.launcher = self._process.pid
        self.unheard: set[int] = set()  # Signals that it got before it had a handler for them.
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.code: int | None = None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._lines.append(line.rstrip("\n"))

    def lines(self, worker: int) -> list[str]:
        """What it has written so far, in all its starts."""
        prefix = f"[w{worker}] "
        return [line.removeprefix(prefix) for line in list(self._lines) if line.startswith(prefix)]

    def said(self) -> list[str]:
        """What the launcher has said so far, and what nobody has said with a name."""
        return [line for line in list(self._lines) if not re.match(r"\[w\d+\] ", line)]

    def ended(self) -> bool:
        """Whether the launcher is gone."""
        return self._process.poll() is not None

    def signal(self, worker: int, number: int) -> bool:
        """Sends a signal to a worker, or to the launcher if it is -1; returns whether there was one."""
        if worker < 0:
            if self._process.poll() is not None:
                return False
            if not _caught(self.launcher, number):
                self.unheard.add(number)
            self._process.send_signal(number)
            return True
        return any(_sent(pid, number) for pid in self._worker(worker))

    def wait(self) -> None:
        """Waits for the end of the launcher."""
        try:
            self.code = self._process.wait(LONGEST)
        finally:
            self.close()

    def close(self) -> None:
        """Ends all."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(30.0)
        self._reader.join(30.0)

    def processes(self) -> list[str]:
        """What is left of them, given a moment: after a SIGKILL of the launcher nobody waits for its workers."""
        killed = self.code == -signal.SIGKILL
        return _left(lambda: [f"{pid} {_command(pid)}" for pid in _marked(self._mark)], killed=killed)

    def _worker(self, index: int) -> list[int]:
        found = []
        for pid in _marked(self._mark):
            if pid == self.launcher or str(SCRIPT) not in _command(pid):
                continue
            if str(SCRIPT) in _command(_parent(pid)) and _parent(pid) != self.launcher:
                continue  # A process of its data.
            config = json.loads(_environment(pid).get("TF_CONFIG", "{}"))
            if config.get("task", {}).get("index", 0) == index:
                found.append(pid)
        return found


Job = Workers | Launch


def _left(look: Callable[[], list[str]], *, killed: bool) -> list[str]:
    limit = time.monotonic() + (20.0 if killed else 0.0)
    while (found := look()) and time.monotonic() < limit:
        time.sleep(0.05)  # Nobody's children: there is nothing to wait on.
    return found


def _sent(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    handled = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return handled is None or bool(int(handled[1], 16) >> (number - 1) & 1)


def _group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _marked(mark: str) -> list[int]:
    """Every process whose environment has that mark, without zombies, which have none."""
    return [
        pid
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal())
        if _environment(pid).get(MARK) == mark
    ]


def _environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)  # type: ignore[misc]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
