"""Reads from proc(5) how processes handle signals."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from keras_preempt.cluster.keeper import descendants

_GLANCES, _PAUSE = 5, 0.01  # How often a blocked signal is looked at again, and the seconds between
_MANY = 50  # the most processes from the one that was started to the one that trains


@dataclass(frozen=True)
class Process:
    """A process, and what it does with SIGTERM."""

    pid: int
    command: str
    parent: int
    blocked: bool  # By all its threads.
    ignored: bool
    caught: bool  # It has a handler.
    first: bool  # It is process 1 of a PID namespace.

    @property
    def is_python(self) -> bool:
        return "python" in self.command.partition(" ")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.pid})"


def look(pid: int) -> Process | None:
    """Returns how a process handles signals; None if it is gone, or the system has no /proc."""
    for number in range(_GLANCES + 1):
        if number:
            time.sleep(_PAUSE)  # A thread blocks all signals for a moment while it starts another one.
        try:
            found = _read(pid)
        except (OSError, KeyError, ValueError, IndexError):
            return None
        if not found.blocked:
            break
    return found


def _read(pid: int) -> Process:
    folder = Path("/proc", str(pid))
    fields, threads = _fields(folder / "status"), []
    for task in (folder / "task").iterdir():
        with contextlib.suppress(OSError):  # The thread has ended meanwhile; those of tf.data come and go.
            threads.append(_fields(task / "status"))
    words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    line = shlex.join(words) or fields["Name"]
    bit = 1 << (signal.SIGTERM - 1)
    return Process(
        pid,
        line if len(line) <= 80 else f"{line[:77]}...",
        int(fields["PPid"]),
        blocked=all(int(thread["SigBlk"], 16) & bit for thread in threads),
        ignored=bool(int(fields["SigIgn"], 16) & bit),
        caught=bool(int(fields["SigCgt"], 16) & bit),
        first=fields.get("NSpid", str(pid)).split()[-1] == "1",
    )


def _fields(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def training_process(reported: object, started: int) -> int:
    """Finds the process that an event names (`this_process.name`) among the descendants of `started`; 0 if not there.

    The reported number is that of its own PID namespace.
    """
    if not isinstance(reported, dict) or not isinstance(reported.get("machine"), str):
        return 0
    wanted, namespace = str(reported.get("pid")), reported["machine"].rpartition("pid:")[2]
    pids: list[int] = [started, *(descendants(started) or {})]
    for pid in pids:
        with contextlib.suppress(OSError):
            here = os.readlink(f"/proc/{pid}/ns/pid").rpartition("pid:")[2]
            number = _fields(Path(f"/proc/{pid}/status")).get("NSpid", str(pid)).split()[-1]
            if here == namespace and number == wanted:
                return pid
    return 0


def chain(started: int, trains: int) -> list[Process]:
    """Returns the processes from the one that was started to the one that trains; only the first if `trains` is 0."""
    found: list[Process] = []
    pid = trains
    while pid and len(found) < _MANY and (process := look(pid)) is not None:
        found.insert(0, process)
        if pid == started:
            return found
        pid = process.parent
    first = look(started)
    return [] if first is None else [first]
