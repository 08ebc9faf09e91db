"""Hears from the workers of a drill that they are being struck, and ends them when their grace period is over."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_preempt.cluster.scratch import scratch_directory

__all__ = ["Strikes", "strikes"]

_END = b"\n"


class Strikes:
    """A named pipe into which struck workers tell so, and a thread that listens to it.

    Args:
        path: The pipe.
        grace: Seconds after which a struck worker is killed; None for never.
        say: Given one line about what happens.

    Attributes:
        struck: Incarnations in which a worker was struck.
        killed: Workers that were still there when their grace period was over, by incarnation.
    """

    def __init__(self, path: Path, grace: float | None, say: Callable[[str], None]) -> None:
        self.path = str(path)
        self.struck: set[int] = set()
        self.killed: dict[int, int] = {}
        self._grace = grace
        self._say = say
        self._lock = threading.Lock()
        self._expected: tuple[int, int, Callable[[int], bool]] | None = None
        self._timer: threading.Timer | None = None
        os.mkfifo(path, 0o600)
        # Open in both directions, so that it has a reader always, and no end while it is open.
        self._pipe = os.open(path, os.O_RDWR)
        self._thread = threading.Thread(target=self._listen, name="keras_preempt-strikes", daemon=True)
        self._thread.start()

    def expect(self, incarnation: int, member: int, kill: Callable[[int], bool]) -> None:
        """The next strike is of that worker, which `kill` can end, if it is still there."""
        self._await((incarnation, member, kill))

    def expect_none(self) -> None:
        """An incarnation begins that is not struck; the time of one before it, if it left early, is over."""
        self._await(None)

    def _await(self, expected: tuple[int, int, Callable[[int], bool]] | None) -> None:
        with self._lock:
            self._expected = expected
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def close(self) -> None:
        """Ends the thread."""
        os.write(self._pipe, _END)
        self._thread.join()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        os.close(self._pipe)

    def _listen(self) -> None:
        buffer = b""
        while True:
            buffer += os.read(self._pipe, 4096)
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if not line:
                    return
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    self._struck(str(told["signal"]), float(told["time"]))

    def _struck(self, signal: str, at: float) -> None:
        with self._lock:
            if self._expected is None:
                return
            incarnation, member, kill = self._expected
            self.struck.add(incarnation)
            self._say(f"w{member} gets {signal} now")
            if self._grace is None or self._timer is not None or signal == "SIGKILL":
                return
            left = max(0.0, at + self._grace - time.time())
            self._timer = threading.Timer(left, self._over, (incarnation, member, kill))
            self._timer.daemon = True
            self._timer.start()

    def _over(self, incarnation: int, member: int, kill: Callable[[int], bool]) -> None:
        with self._lock:
            if self._expected is None or self._expected[0] != incarnation or not kill(member):
                return
            self.killed[incarnation] = member
            self._say(f"w{member} was still there when its {self._grace:g} s of grace were over: killed")


@contextlib.contextmanager
def strikes(grace: float | None, say: Callable[[str], None]) -> Iterator[Strikes]:
    """Listens for as long as the block lasts."""
    with scratch_directory("strikes") as folder:
        listening = Strikes(folder / "strikes", grace, say)
        try:
            yield listening
        finally:
            listening.close()
