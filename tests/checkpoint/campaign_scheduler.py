"""One worker runs at a time, and which one is drawn anew at every operation on the store.

Workers are threads that hand a baton on: a worker runs from one operation to the next and then waits for its turn,
so that the order of all operations follows from the seed. Time is virtual: it passes a little with every operation,
and leaps to the next thing that somebody waits for when nobody else can run.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

_OPERATION = 0.002  # seconds of virtual time
_MOST_OPERATIONS = 20_000  # of one schedule: more means that somebody waits for ever
_LONG = 5_000  # operations; longer than all others run
_JOIN = 30.0  # seconds


class Killed(BaseException):
    """The worker's process is dead: nothing that it does takes effect any more."""


@dataclass
class Worker:
    """A process in the simulation.

    Attributes:
        name: for messages.
        faults: what befalls an operation, by its number from 0 and its name such as "create MANIFEST.json": see
            `SteppedStore`. A number asks for a pause of as many operations by others before it.
        operations: how many it has begun.
        last: the operation before the present one, and the name that it was about.
        late: whether what takes effect now is something that it had given up long before.
    """

    name: str
    faults: Callable[[int, str], str | int | None]
    operations: int = 0
    last: tuple[str, str] = ("", "")
    late: bool = False
    killed: bool = False
    done: bool = False
    wake: float = 0.0
    paused_until: int = 0
    go: threading.Lock = field(default_factory=threading.Lock)
    mutex: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None


class Scheduler:
    """Runs workers in an order that follows from a seed.

    Attributes:
        now: virtual seconds.
        step: operations so far, of all workers.
        failed: the first violation, in words; the schedule ends with it.
    """

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.now = 0.0
        self.step = 0
        self.failed: str | None = None
        self._workers: list[Worker] = []
        self._held: dict[str, Worker] = {}
        self._back = threading.Lock()
        self._back.acquire()
        self._later: list[tuple[int, Callable[[], None]]] = []

    def start(self, worker: Worker, body: Callable[[], None]) -> None:
        """Lets a worker begin."""

        def run() -> None:
            worker.go.acquire()
            try:
                if not worker.killed:
                    body()
            except Killed:
                pass
            except BaseException as error:  # the schedule's result, not to be lost with the thread
                self.fail(f"{worker.name} ended with an unclear error: {error!r}")
            finally:
                worker.done = True
                self._back.release()

        worker.go.acquire()
        worker.thread = threading.Thread(target=run, name=worker.name, daemon=True)
        worker.thread.start()
        self._workers.append(worker)

    def later(self, operations: int, call: Callable[[], None]) -> None:
        """Calls something after so many more operations, or at the end of the schedule."""
        self._later.append((self.step + operations, call))

    def fail(self, why: str) -> None:
        """Notes a violation; the first one counts."""
        self.failed = self.failed or why

    def turn(self, worker: Worker) -> None:
        """Called by a worker before an operation; returns when it is its turn. Raises `Killed`."""
        with worker.mutex:
            self._back.release()
            worker.go.acquire()
        if worker.killed:
            raise Killed

    def pause(self, worker: Worker, until: int | str) -> None:
        """Lets a worker rest for a number of operations by others, or until `release` is called with a name."""
        worker.paused_until = self.step + (until if isinstance(until, int) else _LONG)
        if isinstance(until, str):
            self._held[until] = worker

    def release(self, name: str) -> None:
        """Lets whoever is paused until this go on, at once or a few operations later."""
        worker = self._held.pop(name, None)
        if worker is not None:
            worker.paused_until = self.step + self.random.randrange(16)

    def wait(self, worker: Worker, seconds: float) -> None:
        """Called by a worker to wait."""
        worker.wake = self.now + seconds
        self.turn(worker)

    def run(self) -> None:
        """Runs until every worker has ended, or the first violation; ends all threads."""
        while self.failed is None and self._pick():
            if self.step > _MOST_OPERATIONS:
                self.fail("somebody waits for ever")
        for worker in self._workers:
            while not worker.done:
                worker.killed = True
                self._hand_over(worker)
            if worker.thread is not None:
                worker.thread.join(_JOIN)
                assert not worker.thread.is_alive()
        self._workers.clear()

    def _pick(self) -> bool:
        self._call_later(self.step)
        alive = [worker for worker in self._workers if not worker.done]
        if not alive:
            self._call_later(None)
            return any(not worker.done for worker in self._workers)
        ready = [worker for worker in alive if worker.wake <= self.now and worker.paused_until <= self.step]
        if not ready:
            self._leap(alive)
            return True
        self.step += 1
        self.now += _OPERATION
        self._hand_over(self.random.choice(ready))
        return True

    def _leap(self, alive: list[Worker]) -> None:
        awake = [worker for worker in alive if worker.paused_until <= self.step]
        if awake:
            self.now = min(worker.wake for worker in awake)
            return
        steps = [worker.paused_until for worker in alive] + [step for step, _ in self._later]
        self.step = min(steps)

    def _call_later(self, step: int | None) -> None:
        due = [entry for entry in self._later if step is None or entry[0] <= step]
        self._later = [entry for entry in self._later if entry not in due]
        for _, call in due:
            call()

    def _hand_over(self, worker: Worker) -> None:
        worker.go.release()
        self._back.acquire()
