"""Sends the signals of a drill when workers report their moments, and kills them when their grace period is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.storage.staging import scratch_directory

_END = b"\n"
_SETTLE = 30.0  # seconds for lines that are in the pipe already to be read

Send = Callable[[int, int], int]
"""Sends a signal to the process that the launcher started for a worker; returns the id of that process, or 0 if it is
gone already."""


@dataclass(frozen=True)
class LostSignal:
    """A signal that was sent to the process that the launcher started, and did not reach the training process."""

    member: int
    signal: str
    started: int  # The id of the process that it was sent to; 0 if it was gone.
    training: int  # The id of the process that trains.


class Signaller:
    """A named pipe in which workers report their moments, and a thread that then sends the signals.

    A worker that got its signal is killed after `grace` seconds; None for never.
    """

    def __init__(self, path: Path, grace: float | None, say: Callable[[str], None]) -> None:
        self.path = str(path)
        self.signalled: set[int] = set()  # Incarnations in which a worker got its signal.
        self.killed: dict[int, int] = {}  # Workers that outlived their grace period, by incarnation.
        self.lost: dict[int, LostSignal] = {}  # Sent and not arrived so far, by incarnation.
        self._grace = grace
        self._say = say
        self._lock = threading.Lock()
        self._expected: tuple[int, int, Send] | None = None
        self._timer: threading.Timer | None = None
        self._settled = threading.Event()
        os.mkfifo(path, 0o600)
        # Open in both directions, so that it always has a reader and never reads an end of file.
        self._pipe = os.open(path, os.O_RDWR)
        self._thread = threading.Thread(target=self._listen, name="keras_preempt-signaller", daemon=True)
        self._thread.start()

    def expect(self, expected: tuple[int, int, Send] | None) -> None:
        """Names the incarnation and the worker that get the next signal, if one does.

        The grace period of the last one, if it left early, is cancelled.
        """
        with self._lock:
            self._expected = expected
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def settle(self) -> None:
        """Waits until everything that the workers have reported so far has been read."""
        self._settled.clear()
        os.write(self._pipe, b'{"settled": true}\n')
        self._settled.wait(_SETTLE)

    def close(self) -> None:
        os.write(self._pipe, _END)
        self._thread.join()
        self.expect(None)
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
                    self._obey(json.loads(line))

    def _obey(self, report: dict[str, Any]) -> None:
        if "settled" in report:
            self._settled.set()
            return
        with self._lock:
            if self._expected is None:
                return
            incarnation, member, send = self._expected
            if "arrived" in report:
                lost = self.lost.get(incarnation)
                # A wrapper that the signal ends takes the machine, container or job step with it. The drill's launcher
                # passes the signal on to what the wrapper left behind, but elsewhere nobody does.
                if lost is not None and (lost.started == lost.training or _lives(lost.started)):
                    del self.lost[incarnation]
            elif "lost" in report:  # Without it, this incarnation can prove nothing.
                self._say(f"w{member} has not heard {report['lost']}: ended")
                send(member, signal.SIGKILL)
            else:
                self._signal(str(report["signal"]), int(report["pid"]), bool(report.get("wanted")))

    def _signal(self, name: str, training: int, wanted: bool) -> None:
        """A worker's moment has come: it wants the signal, or sends it to itself."""
        assert self._expected is not None
        at = time.monotonic()  # Not what the worker's wall clock says, which somebody may set.
        incarnation, member, send = self._expected
        self.signalled.add(incarnation)
        self._say(
            f"w{member} gets {name} now, {'from outside' if wanted else 'sent by the worker to itself'}"
        )
        if wanted:
            started = send(member, signal.Signals[name])
            if name != "SIGKILL":
                self.lost[incarnation] = LostSignal(member, name, started, training)
        if self._grace is None or self._timer is not None or name == "SIGKILL":
            return
        left = max(0.0, at + self._grace - time.monotonic())
        self._timer = threading.Timer(left, self._grace_is_over, (incarnation, member, send))
        self._timer.daemon = True
        self._timer.start()

    def _grace_is_over(self, incarnation: int, member: int, send: Send) -> None:
        with self._lock:
            if self._expected is None or self._expected[0] != incarnation or not send(member, signal.SIGKILL):
                return
            self.killed[incarnation] = member
            self._say(f"w{member} was still there when its {self._grace:g} s of grace were over: killed")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


@contextlib.contextmanager
def signaller(grace: float | None, say: Callable[[str], None]) -> Iterator[Signaller]:
    """Listens during the block."""
    with scratch_directory("signals") as folder:
        listening = Signaller(folder / "signals", grace, say)
        try:
            yield listening
        finally:
            listening.close()
