"""How far a worker has come, in a small file that its launcher looks at: one store into mapped memory for each step.

A launcher that watches for hangs makes the file before it starts the worker; without one the worker writes into a list.
The worker also offers the stacks of all its threads, on a real-time signal. They are written by `faulthandler`, in C
and without the GIL, so that a loop in C code that holds the GIL shows where Python called it.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import mmap
import os
import signal
import struct
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from keras_preempt.process.environment import STATUS_DIR, WORKER


class Phase(enum.IntEnum):
    """What the main thread of a worker is doing."""

    START = 0
    COMPILE = 1
    TRAIN = 2
    EPOCH = 3
    VALIDATION_START = 4
    VALIDATION = 5
    SAVE = 6
    LOOP = 7
    END = 8
    OUTSIDE = 9


PHASES = {
    Phase.START: "its start",
    Phase.COMPILE: "the first training step",
    Phase.TRAIN: "a training step",
    Phase.EPOCH: "the turn from one epoch to the next",
    Phase.VALIDATION_START: "the first step of a validation",
    Phase.VALIDATION: "a validation step",
    Phase.SAVE: "a save",
    Phase.LOOP: "a step of a custom loop",
    Phase.END: "the end of the fit",
    Phase.OUTSIDE: "what the script does after a fit",
}
"""Each phase in words. The first step of an epoch or a validation may fill buffers and compile: it is no usual one."""

_WORDS = struct.Struct("10Q")
_COUNT, _PHASE, _FIT, _STEP, _AT, _PER, _SAVED, _MEMBERS, _PID, _SIGNAL = range(10)
_BITS = 8  # of the phase; those above count its changes, so that each change shows


class Beat(NamedTuple):
    """What a launcher reads.

    Two beats that are equal say that the main thread has not come on between them. `step` is the number of training
    steps done, `saved` of those in the newest checkpoint; each boundary adds `per_boundary`. `members` is how many
    workers train the model, 0 before the first fit; `pid` and `signal` are 0 if unknown.
    """

    fit: int
    entered: int
    phase: Phase
    changes: int
    step: int
    per_boundary: int
    saved: int
    members: int
    pid: int
    signal: int


def beat_file(worker: int) -> str:
    return f"beat-{worker}"


def stacks_file(worker: int) -> str:
    """The file to which a worker writes the stacks of its threads when it gets the signal that it has named."""
    return f"stacks-{worker}.txt"


def prepared(path: Path) -> IO[bytes]:
    """Makes the file of a worker that has not started, with all its bytes: there is room for each later store."""
    file = path.open("xb+", buffering=0)
    file.write(bytes(_WORDS.size))
    return file


def read_beat(file: IO[bytes]) -> Beat:
    words = _WORDS.unpack(os.pread(file.fileno(), _WORDS.size, 0))
    phase = Phase(words[_PHASE] & (1 << _BITS) - 1)
    # The step of the boundary at which the worker stands, or that it has entered last, is not done.
    step = words[_STEP] + max(0, words[_COUNT] - words[_AT] - 1) * words[_PER]
    return Beat(words[_FIT], words[_COUNT], phase, words[_PHASE] >> _BITS, step, *words[_PER:])


class Heartbeat:
    """The worker's side.

    Attributes:
        count: Its first element is the number of boundaries that the main thread has entered in this fit; it stores it
            there itself.
        phase: What it is doing.
    """

    def __init__(self, words: MutableSequence[int] | None = None) -> None:
        self.count: MutableSequence[int] = [0] * 10 if words is None else words
        self.phase = Phase.START

    def begin(self, members: int) -> None:
        """A fit or a custom loop begins, of so many workers."""
        words = self.count
        words[_COUNT] = words[_AT] = words[_STEP] = words[_PER] = words[_SAVED] = 0
        words[_FIT] += 1
        words[_MEMBERS], words[_PID] = members, os.getpid()
        self.enter(Phase.START)

    def enter(self, phase: Phase, step: int | None = None, per_boundary: int = 0) -> None:
        """The main thread turns to a phase; `step` steps are done, and `per_boundary` more at each boundary after."""
        words = self.count
        if step is not None:
            words[_STEP], words[_AT], words[_PER] = step, words[_COUNT], per_boundary
        if phase is not self.phase:
            self.phase = phase
            words[_PHASE] = (words[_PHASE] >> _BITS) + 1 << _BITS | phase

    def saved(self, step: int) -> None:
        """So many steps are in the newest checkpoint. May be called from any thread."""
        self.count[_SAVED] = step

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """The main thread is in a phase for the time of a block."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)


_UNWATCHED = Heartbeat()
_own: tuple[str, Heartbeat] | None = None
_stacks: IO[Any] | None = None


def of_process() -> Heartbeat:
    """The heartbeat of this process; the first call maps the launcher's file, if there is one."""
    global _own
    folder, worker = os.environ.get(STATUS_DIR), os.environ.get(WORKER, "")
    if not folder or not worker.isdecimal():
        return _UNWATCHED
    path = os.path.join(folder, beat_file(int(worker)))
    if _own is None or _own[0] != path:
        try:
            words = _mapped(path)
        except (OSError, ValueError):  # This launcher does not watch, or cannot be seen from in here.
            return _UNWATCHED
        # One of several processes of a worker, such as those of a data loader, that run the same script.
        if not _exists(words[_PID]):
            words[_PID], words[_SIGNAL] = os.getpid(), 0
        if words[_PID] == os.getpid():
            words[_SIGNAL] = _offer_stacks(os.path.join(folder, stacks_file(int(worker))))
        _own = path, Heartbeat(cast(MutableSequence[int], words))
    return _own[1]


def _mapped(path: str) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, _WORDS.size)).cast("Q")
    finally:
        os.close(descriptor)


def _exists(pid: int) -> bool:
    return pid != 0 and os.path.exists(f"/proc/{pid}")


def _offer_stacks(path: str) -> int:
    """Has the stacks of all threads written on a signal that nobody uses; returns its number, 0 if that failed."""
    global _stacks
    try:
        number = next(
            each for each in range(signal.SIGRTMAX - 1, signal.SIGRTMIN + 1, -1) if is_free(os.getpid(), each)
        )
        _stacks = open(path, "ab", buffering=0)  # noqa: SIM115 - for as long as the process lives
        faulthandler.register(number, _stacks, all_threads=True)
    except (AttributeError, OSError, RuntimeError, StopIteration, ValueError):
        return 0
    return int(number)


def is_free(pid: int, number: int) -> bool:
    """Whether a process neither handles, blocks nor ignores a signal, as proc(5) says. Raises OSError."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        masks = [line.split()[1] for line in file if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
    return not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
