"""What can be had of a process that hangs: the state of its threads, and their Python stacks."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from keras_preempt.cluster.keeper import handles

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible sleep, as for a disk or a file server",
    "T": "stopped by a signal (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}
_STOPPED = ("T", "t")

_PATIENCE = 5.0  # seconds until all stacks are written
_QUIET = 0.3  # seconds without another byte: they are complete
_AGAIN = 0.05
_MOST_LINES = 2000  # of one process


def is_stopped(pid: int) -> bool:
    return _state(f"/proc/{pid}/stat") in _STOPPED


def threads_of(pid: int) -> str:
    """What the threads of a process do, in words; empty if it is gone or the system does not say."""
    states: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            states[_state(f"/proc/{pid}/task/{thread}/stat")] += 1
    main = _state(f"/proc/{pid}/task/{pid}/stat")
    if not main:
        return ""
    where = ""
    with contextlib.suppress(OSError):
        kernel = Path(f"/proc/{pid}/wchan").read_text()
        where = f" in {kernel}" if kernel.strip("0") else ""
    others = [f"{number} {_STATES.get(state, state)}" for state, number in states.items() if state]
    return f"its main thread is {_STATES.get(main, main)}{where}; of all its threads {', '.join(others)}"


def _state(stat: str) -> str:
    try:
        return Path(stat).read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def stacks(asked: Mapping[int, tuple[int, int, Path]]) -> dict[int, list[str]]:
    """Has processes write the stacks of their threads; returns the lines by worker, none if none came.

    `asked` has the process of each worker, the signal that it has named, and the file in which they appear.
    """
    before: dict[int, int] = {}
    for worker, (pid, number, file) in asked.items():
        # Without its handler the signal would end the process; one that is stopped would answer later.
        if number and handles(pid, number) and not is_stopped(pid):
            with contextlib.suppress(OSError):
                before[worker] = _size(file)
                os.kill(pid, number)
    sizes = dict(before)
    limit = time.monotonic() + _PATIENCE
    quiet = limit
    while before and time.monotonic() < min(limit, quiet):
        time.sleep(_AGAIN)
        now = {worker: _size(asked[worker][2]) for worker in before}
        if now != sizes:
            sizes = now
            if all(sizes[worker] > before[worker] for worker in before):
                quiet = time.monotonic() + _QUIET
    found = {}
    for worker, start in before.items():
        with contextlib.suppress(OSError), asked[worker][2].open(encoding="utf-8", errors="replace") as text:
            text.seek(start)
            found[worker] = text.read().splitlines()[:_MOST_LINES]
    return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
