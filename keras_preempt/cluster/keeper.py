"""The keeper of one worker: starts its command, passes signals on, and ends everything that the command started.

It runs as a script that imports nothing from the package: ``python -I -S keeper.py <control socket>``. It stands
between the launcher and the command as a small init does in a container, because some things can only be done there:

- When the launcher is gone, even after a SIGKILL that no handler of the launcher could see, the socket ends and the
  keeper kills whatever the command has started. If the keeper itself is killed, the kernel kills the command
  (prctl(2), PR_SET_PDEATHSIG) and the launcher the rest of the session.
- The keeper is the reaper of its descendants (PR_SET_CHILD_SUBREAPER): a process that leaves the group or the session
  (setsid, a daemon's double fork) becomes its child and can be found. No other process is ever signalled.
- The process that listens for notices need not be the one that was started: in ``sh -c 'python train.py; echo over'``
  the shell would die of a SIGTERM and the training process would never get it. That process names itself in a file
  (`keras_preempt.report.status`), and the signal goes to it. Until it has done so, the signal goes to the command.
- A process need not end at a SIGTERM that it does not listen for: ``jax.distributed.initialize`` installs a handler of
  its own, after which nothing happens. If such a process listens later, it is told again. If it does not within the
  time that the launcher names, it is killed. One that has said that it listens is never killed for being slow.

The other processes of the group get no signal, because training needs them until it has saved: the workers of a data
loader, for example.

Both prctl options exist on Linux only. Elsewhere only the process group of the command is ended with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

KILL_ALL = 255  # Sent by the launcher instead of the number of a signal: kill everything at once.

TO_COMMAND = 128
"""Added by the launcher to the number of a signal that goes to the command itself, as a machine would send it."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

# All in seconds.
_SETTLE = 0.5  # for the helpers of a process that has ended (multiprocessing has some) to end by themselves
_WRAP_UP = 10.0  # for a shell script to end after the training process that was told to stop
_SAVING = 600.0  # for a training process whose shell has died to save
_TERMINATED = 5.0  # between SIGTERM and SIGKILL for what is left
_AGAIN = 0.1  # between two looks at what cannot be waited for
_UNKILLABLE = 20.0  # after SIGKILL: a process that still exists hangs in the kernel

_MOST_TOLD = 2  # training processes, one after the other, that are told to stop and waited for

_USERS = (signal.SIGUSR1, signal.SIGUSR2)  # A scheduler's notice, if training listens for it.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *_USERS)
_NOT_THE_KEEPERS = (*_ENDING, signal.SIGQUIT)


class _Keeper:
    def __init__(
        self, control: socket.socket, command: list[str], listening: str, unheard_grace: float
    ) -> None:
        self._control = control
        self._listening = listening
        self._unheard_grace = unheard_grace
        self._killing: float | None = None  # Since when; so are all the times below.
        self._terminating: float | None = None
        self._main_ended: float | None = None
        self._main_code = 0
        self._told = 0  # The training process that was told to stop; 0: none.
        self._told_at = 0.0
        self._told_count = 0
        self._told_gone: float | None = None
        self._wrapper_told = False
        self._wanted = 0  # A signal that came before a training process was known.
        self._terminated_at: float | None = None  # Since when the command has had a SIGTERM.
        self._unheard = False  # It was killed since nothing in it listened.
        self._orphans: dict[int, int] = {}  # Exit codes of descendants that became children of the keeper.
        self._reported = False
        # Before the command starts, so that none of its descendants is missed.
        if sys.platform == "linux":
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        inherited = {number: signal.getsignal(number) for number in _NOT_THE_KEEPERS}
        self._wakeup, self._writer = socket.socketpair()
        self._wakeup.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # Held back, so that one that the child gets before it has become the command waits for it and is not lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THE_KEEPERS)
        keeper = os.getpid()
        self._main = os.fork()
        if self._main == 0:
            _become(command, inherited, mask, keeper)
        for number in _NOT_THE_KEEPERS:  # A scheduler may signal every process of a job, and this is one.
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with contextlib.suppress(OSError):  # In both processes, whichever comes first.
            os.setpgid(self._main, self._main)
        self._say(f"started {self._main}")

    def run(self) -> None:
        """Returns when the command and everything that it has started are gone."""
        while self._reap():
            patience = self._advance()
            if self._killing is not None and time.monotonic() - self._killing > _UNKILLABLE:
                break
            sources = [self._wakeup] if self._killing is not None else [self._wakeup, self._control]
            ready, _, _ = select.select(sources, [], [], patience)
            if self._wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup.recv(4096)
            if self._control in ready:
                try:
                    numbers = self._control.recv(4096)
                except OSError:
                    numbers = b""
                for number in numbers or bytes([KILL_ALL]):
                    self._obey(number)
        self._report()

    def _obey(self, number: int) -> None:
        command = self._main if self._main_ended is None else 0
        if number in (KILL_ALL, signal.SIGKILL):
            self._killing = self._killing or time.monotonic()
            _send(command, signal.SIGKILL)
            return
        if number > TO_COMMAND:
            _send(command, number - TO_COMMAND)
            return
        trainer = self._trainer()
        target = trainer or command
        if number in _USERS and not handles(target, number):
            number = signal.SIGTERM  # It would be killed without having saved.
        if number in _ENDING:
            self._wanted = number
        if trainer and number in _ENDING:
            self._tell(trainer, number)
        else:
            if number == signal.SIGTERM:
                self._terminated_at = self._terminated_at or time.monotonic()
            _send(target, number)

    def _tell(self, trainer: int, number: int) -> None:
        if trainer != self._told:
            self._told, self._told_at = trainer, time.monotonic()
            self._told_count += 1
        _send(trainer, number)

    def _advance(self) -> float | None:
        """Does what is due; returns the seconds until more is due, None to wait for a message or an exit."""
        now = time.monotonic()
        if self._killing is not None:
            self._send_all(signal.SIGKILL)
            return _AGAIN
        if self._main_ended is None:
            return self._while_the_command_runs(now)
        if now < self._main_ended + _SETTLE:
            return self._main_ended + _SETTLE - now
        return self._end_what_is_left(now)

    def _while_the_command_runs(self, now: float) -> float | None:
        """Ends the command if nothing in it listens, or some time after its training process has ended."""
        if not self._wanted:
            return None
        trainer = self._trainer()
        if trainer == self._main:
            if not self._told and self._terminated_at is not None:
                self._tell(trainer, signal.SIGTERM)  # It has begun to listen since, and lives.
            return None
        if trainer and not self._told:
            self._tell(trainer, self._wanted)  # The shell has not passed the signal on.
        if not self._told:
            if self._terminated_at is not None and now >= self._terminated_at + self._unheard_grace:
                self._unheard, self._killing = True, now
                self._say(f"unheard {self._unheard_grace:g}")
                return 0.0
            return _AGAIN
        if trainer == self._told:
            return _AGAIN
        self._told_gone = self._told_gone or now
        return self._end_what_is_left(now) if now >= self._told_gone + _WRAP_UP else _AGAIN

    def _end_what_is_left(self, now: float) -> float:
        """The training process saves first, and keeps its children until then."""
        if self._main_ended is None and not self._wrapper_told:
            self._wrapper_told = True
            _send(self._main, signal.SIGTERM)  # It may be a loop that starts the training again and again.
        trainer = self._trainer()
        if trainer and self._terminating is None:
            if trainer != self._told and self._told_count < _MOST_TOLD:
                self._tell(trainer, self._wanted or signal.SIGTERM)
            if trainer == self._told and now < self._told_at + _SAVING:
                return _AGAIN
        self._report()
        if self._terminating is None:
            self._terminating = now
            names = self._send_all(signal.SIGTERM)
            if names:
                self._say(f"left {', '.join(names)}")
        elif now >= self._terminating + _TERMINATED:
            self._killing = now
        return _AGAIN

    def _send_all(self, number: int) -> list[str]:
        """Signals all descendants; returns their names, without the command's."""
        found = descendants(os.getpid())
        if found is None:
            with contextlib.suppress(OSError):
                os.killpg(self._main, number)
            return []
        for pid in found:
            _send(pid, number)
        return [f"{name} ({pid})" for pid, name in found.items() if pid != self._main]

    def _trainer(self) -> int:
        """The process that said that it listens, if it is a living descendant; else 0."""
        if not self._listening:
            return 0
        try:
            with open(self._listening, encoding="utf-8") as file:
                told = json.load(file)
            pid, ticks = int(told["pid"]), told["ticks"]
        except (OSError, ValueError, TypeError, KeyError):
            return 0
        if pid == self._main:
            return pid if self._main_ended is None else 0
        process = _look(pid)
        if process is None or process.state == "Z" or process.since != ticks:
            return 0
        while process is not None and process.parent != os.getpid():
            process = _look(process.parent)
        return pid if process is not None else 0

    def _reap(self) -> bool:
        """Reaps processes that have ended; returns whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            if pid == self._main:
                self._main_ended, self._main_code = time.monotonic(), code
                if not self._trainer():
                    self._report()
            else:
                self._orphans[pid] = code

    def _report(self) -> None:
        """Reports how the worker ended: as its command, or as the training process that outlived the command."""
        if self._main_ended is None or self._reported:
            return
        self._reported = True
        # SIGKILL only did what SIGTERM does to others that do not listen: to the launcher they are the same.
        code = -signal.SIGTERM if self._unheard else self._orphans.get(self._told, self._main_code)
        self._say(f"ended {code}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # The launcher is gone, which is noticed elsewhere.
            self._control.sendall(f"{line}\n".encode())


class _Process(NamedTuple):
    """What proc(5) says of a process; `since` is in clock ticks from the boot to its start."""

    name: str
    state: str
    parent: int
    session: int
    since: int


def _look(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name stands in parentheses, and may contain spaces and parentheses itself.
            head, _, rest = file.read().rpartition(")")
        fields = rest.split()
        return _Process(head.partition("(")[2], fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _processes() -> Iterator[tuple[int, _Process]]:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (process := _look(int(name))) is not None:
                yield int(name), process


def descendants(root: int) -> dict[int, str] | None:
    """The names of the descendants of a process by their ids, without zombies; None if the system has no /proc."""
    if _look(os.getpid()) is None:
        return None
    children: dict[int, list[tuple[int, _Process]]] = {}
    for pid, process in _processes():
        children.setdefault(process.parent, []).append((pid, process))
    found: dict[int, str] = {}
    parents = [root]
    while parents:
        for pid, process in children.pop(parents.pop(), []):
            parents.append(pid)
            if process.state != "Z":
                found[pid] = process.name
    return found


def of_session(session: int) -> list[int]:
    """The processes of a session, without zombies; none where the system has no /proc."""
    return [pid for pid, process in _processes() if process.session == session and process.state != "Z"]


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False where the system does not say."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError, StopIteration):
        return False


def _send(pid: int, number: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _become(
    command: list[str], inherited: Mapping[signal.Signals, object], mask: Iterable[int], keeper: int
) -> None:
    """Becomes the command, in a process group of its own; exits with 127 if it cannot start."""
    try:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # The keeper died before prctl was called.
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number, handler in inherited.items():
            # A launcher in a shell's background ignores SIGINT, and exec would pass that on to the worker. A SIGHUP
            # that is ignored (nohup) stays ignored.
            ignored = handler is signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]!r}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def main(argv: list[str]) -> None:
    """Keeps the worker that the launcher describes on the socket with the descriptor ``argv[1]``."""
    descriptor = int(argv[1])
    os.set_inheritable(descriptor, False)
    control = socket.socket(fileno=descriptor)
    text = b""
    while not text.endswith(b"\n"):
        piece = control.recv(1 << 16)
        if not piece:
            return  # The launcher is gone already.
        text += piece
    wanted = json.loads(text)
    keeper = _Keeper(control, wanted["command"], wanted["listening"], wanted["unheard_grace"])
    if wanted["keep"] is not None:
        os.close(wanted["keep"])  # The command has it now.
    keeper.run()


if __name__ == "__main__":
    main(sys.argv)
