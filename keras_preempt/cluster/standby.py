"""Standbys: processes that have imported what the script imports before a worker has to start.

A worker that starts takes one, if there is one that fits: `standby_site` has what happens inside it. Whatever is wrong
with a standby, the worker is started as ever instead.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import re
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.machine_memory import available
from keras_preempt.cluster.local import LocalCluster
from keras_preempt.cluster.status import incarnation_folder
from keras_preempt.cluster.worker import Kept, launch
from keras_preempt.process.environment import INCARNATION, STANDBY
from keras_preempt.report.status import imports_file, process_file

_SITE = Path(__file__).with_name("standby_site")
_ANSWER = 0.5  # seconds for a standby that waits to answer
_IDLE = 0.25  # the share of the processors that is idle before standbys are started,
_BUSY_SECONDS = 20.0  # or the seconds that training has gone on
_LONGEST_IMPORT = 300.0  # seconds
_LOOK = 0.2  # seconds between two looks at standbys that import
_MOST_IMPORTED = 2 << 30  # bytes that imports take, before one has told
_ROOM = 2  # times the memory of a standby that must be free

_TAKES_NO_WORD = frozenset("bBdOPqRsu")  # Options of Python that change nothing about how it finds a module.
_TAKES_A_WORD = frozenset("WX")


def why_not(command: Sequence[str]) -> str | None:
    """Returns why no standby can become this command; None if one can: Python with a script, ``-m`` or ``-c``."""
    words = list(command)
    program = shutil.which(words[0])
    if program is None:
        return f"{words[0]!r} is not found"
    named = _named_first(program)
    if named is not None or not _is_python(words[0]):
        if not named or not _is_python(named[0]):
            return f"{command[0]!r} is no Python, and no script that names one in its first line"
        words = [*named, program]
    for word in (rest := iter(words[1:])):
        if not word.startswith("-") or word == "-":
            return "Python reads the script from standard input" if word == "-" else None
        for position, letter in enumerate(word[1:], 1):
            if letter in "cm":
                return None
            if letter in _TAKES_A_WORD:
                if position == len(word) - 1:
                    next(rest, None)
                break
            if letter not in _TAKES_NO_WORD:
                return f"Python is started with {word}"
    return "Python is started without a script"


def _named_first(program: str) -> list[str] | None:
    """Returns the command in the first line of a script; None if it is none. One of a shell may be called "python"."""
    try:
        with open(program, "rb") as file:
            first = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    return words[1:] if words and os.path.basename(words[0]) == "env" else words


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python([0-9]+(\.[0-9]+)?)?", os.path.basename(program)) is not None


def noting(environment: Mapping[str, str], mode: str = "notes") -> dict[str, str]:
    """Returns the environment in which Python runs the part that is inside it."""
    path = environment.get("PYTHONPATH")
    return {
        **environment,
        STANDBY: mode if path is None else f"{mode}={path}",
        "PYTHONPATH": os.pathsep.join([str(_SITE), path] if path else [str(_SITE)]),
    }


@dataclass
class _Standby:
    """One that was started, or a worker that it has become."""

    kept: Kept
    channel: socket.socket
    started_at: float
    words: bytes = b""
    pid: int = 0  # Once it is ready; so is `size`.
    size: int = 0

    def read(self, seconds: float = 0.0) -> str | None:
        """Returns the next line that it says, "" if it has ended; None if there is none after some seconds."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.words:
            ready, _, _ = select.select([self.channel], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            try:
                piece = self.channel.recv(1 << 16)
            except OSError:
                piece = b""
            if not piece:
                return ""
            self.words += piece
        line, _, self.words = self.words.partition(b"\n")
        return line.decode("utf-8", "replace")


@dataclass
class ImportNotes:
    """What the workers of a command import, which a later job of the same command can be given.

    Attributes:
        heads: The imports by worker, from its last start without a standby.
        size: Bytes of memory that they take; 0: not known yet.
        over: Whether there are to be no standbys.
    """

    heads: dict[int, list[Any]] = field(default_factory=dict)
    size: int = 0
    over: bool = False


class Standbys:
    """The standbys of one job, at most one for each worker and start.

    Args:
        command: What the workers run.
        say: Called with a line, once, when there are to be no standbys any more.
        unheard_grace: See `keeper`.
        cwd: Working directory of the workers.
        notes: What the workers of an earlier job have imported.
        starts: How many starts to prepare before the job begins, if the imports are known; 0: none is ever prepared,
            the imports are only noted.
    """

    def __init__(
        self,
        command: Sequence[str],
        say: Callable[[str], None],
        unheard_grace: float,
        cwd: Path | None,
        notes: ImportNotes,
        starts: int = 1,
    ) -> None:
        self._command = list(command)
        self._say = say
        self._unheard_grace = unheard_grace
        self._cwd = cwd
        self._notes = notes
        self._starts = starts
        self._prepared = False
        self._waiting: dict[tuple[int, int], _Standby] = {}  # By incarnation and worker.
        self._workers: list[_Standby] = []  # Those that have become workers, until their training begins.
        self._cluster: LocalCluster | None = None
        self._began: float | None = None  # When all workers trained.
        self._processors: tuple[float, float] | None = None
        if (why := why_not(command)) is not None:
            self._give_up(why)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment for a worker that starts without a standby."""
        return dict(environment) if self._notes.over else noting(environment)

    def take(self, index: int, environment: Mapping[str, str]) -> Kept | None:
        """Makes a standby the worker of this number; returns the process, None if the worker has to be started."""
        standby = self._waiting.pop((int(environment[INCARNATION]), index), None)
        if standby is None:
            return None
        self._hear(standby)
        if standby.pid:
            try:
                standby.channel.sendall(_message(dict(environment)))
                answer = standby.read(_ANSWER)
            except OSError:
                answer = ""
            if answer == "taken":
                self._workers.append(standby)
                return standby.kept
            if answer and answer.startswith("unfit "):
                self._give_up(answer.partition(" ")[2])
        _end(standby)
        return None

    @property
    def ready(self) -> int:
        """How many have imported what they import, and wait."""
        return sum(standby.pid > 0 for standby in [*self._waiting.values()])

    def prepare(self, root: Path, cluster: LocalCluster, stopped: Callable[[], bool]) -> None:
        """Called before the first start: starts standbys for later ones, and waits until they are ready.

        Args:
            root: Where the incarnations have their folders.
            cluster: The workers, not started yet.
            stopped: Whether to wait no longer.
        """
        if self._notes.over or not self._notes.heads or not self._starts:
            return
        if self._has_room(cluster.size * self._starts):
            self._prepared = True
            self._say(f"{cluster.size * self._starts} standbys import ahead, for the starts to come")
            for number in range(1, self._starts + 1):
                self._start_all(root, number, cluster)
        while not self._notes.over and self.ready < len(self._waiting) and not stopped():
            missing = [each for each in self._waiting.values() if not each.pid]
            select.select([each.channel for each in missing], [], [], _LOOK)
            self._hear_all()

    def look(self, root: Path, number: int, cluster: LocalCluster) -> None:
        """Called about once a second while workers run: starts standbys for the next start when the machine is idle.

        Args:
            root: Where the incarnations have their folders.
            number: The incarnation that runs.
            cluster: The workers.
        """
        if self._cluster is not cluster:
            self._cluster, self._began = cluster, None
        self._hear_workers()
        if self._notes.over:
            return
        self._hear_all()
        if self._notes.over or not self._all_train(root / incarnation_folder(number), cluster):
            return
        if self._waiting:
            self._has_room(1)
        elif self._starts and not self._prepared and self._is_idle() and self._has_room(cluster.size):
            self._start_all(root, number + 1, cluster)

    def close(self) -> None:
        self._end_all()
        for standby in self._workers:
            standby.channel.close()
        self._workers.clear()

    def _start_all(self, root: Path, number: int, cluster: LocalCluster) -> None:
        folder = root / incarnation_folder(number)
        for index, environment in enumerate(cluster.environments):
            if not self._notes.over:
                self._start(number, index, environment, folder / process_file(index))

    def _start(self, number: int, index: int, environment: Mapping[str, str], listening: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            wanted = noting(environment, f"{theirs.fileno()}")
            try:
                kept = launch(
                    self._command, wanted, self._cwd, str(listening), self._unheard_grace, theirs.fileno()
                )
            except OSError as error:
                ours.close()
                self._give_up(f"a process cannot be started: {error}")
                return
        with contextlib.suppress(OSError):  # It has ended, which is heard.
            ours.sendall(_message(self._notes.heads[index]))
        self._waiting[number, index] = _Standby(kept, ours, time.monotonic())

    def _hear_all(self) -> None:
        for standby in list(self._waiting.values()):
            if not self._notes.over:
                self._hear(standby)

    def _hear(self, standby: _Standby) -> None:
        """Listens to a standby that imports or waits."""
        while (line := standby.read()) is not None:
            what, _, rest = line.partition(" ")
            if what == "ready":
                standby.pid, standby.size = map(int, rest.split())
                self._notes.size = max(self._notes.size, standby.size)
            else:
                self._give_up(rest or "a standby has ended by itself")
                return
        if not standby.pid and time.monotonic() - standby.started_at > _LONGEST_IMPORT:
            self._give_up(f"its imports take more than {_LONGEST_IMPORT:g} s")

    def _hear_workers(self) -> None:
        for standby in list(self._workers):
            while (line := standby.read()) is not None:
                if line.startswith("unfit "):
                    self._give_up(f"the script had to be started again, since {line.partition(' ')[2]}")
                if not line:
                    standby.channel.close()
                    self._workers.remove(standby)
                    break

    def _all_train(self, status_dir: Path, cluster: LocalCluster) -> bool:
        if self._began is None:
            for index, pid in enumerate(cluster.pids):
                try:
                    told = json.loads((status_dir / imports_file(index)).read_text("utf-8"))
                except (OSError, ValueError):
                    return False
                if told.get("pid") != pid:
                    self._give_up("the script trains in a process that it has started itself")
                    return False
                if (status_dir / f"child-imports-{index}").exists():
                    self._give_up("a process that the script forks imports with variables of its own")
                    return False
                if told.get("mixed"):
                    self._give_up(f"an installed package imports {told['mixed']!r}, which is not one")
                    return False
                if told.get("heads") is not None:
                    self._notes.heads[index] = told["heads"]
                    # The process has more than its imports by now; a standby tells what they take.
                    self._notes.size = self._notes.size or min(int(told["resident"]), _MOST_IMPORTED)
                elif index not in self._notes.heads:
                    self._give_up(
                        "the script hands over to another program, or the command changes PYTHONPATH"
                    )
                    return False
            self._began = time.monotonic()
            self._processors = None
        return True

    def _is_idle(self) -> bool:
        """Whether the machine is, or training has gone on for some time on one that never is."""
        assert self._began is not None
        now, before = _processor_times(), self._processors
        self._processors = now
        if now is None or time.monotonic() - self._began > _BUSY_SECONDS:
            return True
        return before is not None and now[1] - before[1] >= _IDLE * (now[0] - before[0]) > 0

    def _has_room(self, count: int) -> bool:
        """Whether there is memory for so many; otherwise there are to be none any more."""
        size, free = self._notes.size, available()
        if size and free < (_ROOM + count - 1) * size:
            self._give_up(
                f"there is not {_ROOM} times the memory free that one takes, {size / 1e6:,.0f} MB (free: "
                f"{free / 1e6:,.0f} MB)"
            )
            return False
        return True

    def _give_up(self, why: str) -> None:
        if not self._notes.over:
            self._say(f"no standby, so workers start as without --standby: {why}")
        self._notes.over = True
        self._end_all()

    def _end_all(self) -> None:
        for standby in self._waiting.values():
            _end(standby)
        self._waiting.clear()


def _message(value: Any) -> bytes:
    """What a standby reads without the module `json`, which its script may not have imported."""
    data = marshal.dumps(value, 2)
    return b"%d:%s" % (len(data), data)


def _end(standby: _Standby) -> None:
    standby.channel.close()
    standby.kept.end()


def _processor_times() -> tuple[float, float] | None:
    """The time of all processors, and that in which they were idle, since the boot; None if the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/stat", encoding="ascii") as file:
            times = [float(field) for field in file.readline().split()[1:9]]
        return sum(times), times[3] + times[4]
    return None
