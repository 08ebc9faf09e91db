"""Several `Runtime`s in one process, each with a thread that trains: steps that a test lets go one by one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_preempt.agreement.messages import Plan, Position
from keras_preempt.notices import Notice
from keras_preempt.report.events import EventLog
from keras_preempt.training.run.runtime import Runtime
from tests.agreement.memory_coordinator import PATIENCE, MemoryCoordinator, MemoryService

EVER = 10**9


class Events(EventLog):
    def __init__(self, member: int) -> None:
        super().__init__(member)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._news = threading.Condition()

    def emit(self, kind: str, **fields: object) -> None:
        super().emit(kind, **fields)
        with self._news:
            self.told.append((kind, fields))
            self._news.notify_all()

    def await_kind(self, wanted: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: any(kind == wanted for kind, _ in self.told), PATIENCE)


class Worker:
    """A member: its runtime, and the main thread that passes its boundaries as `fit` does.

    Attributes:
        acted: Steps done when it acted, and the plan, for each plan that it carried out.
        ahead: Batches by which its position differs from that of the others.
    """

    def __init__(self, coordinator: MemoryCoordinator, steps: int) -> None:
        self.events = Events(coordinator.member)
        self.runtime = Runtime(coordinator, self.events, fit=1)
        self.ahead = 0
        self.saving: threading.Event | None = None
        self.trained = 0
        self.acted: list[tuple[int, Plan]] = []
        self.finished = False
        self.error: BaseException | None = None
        self._steps = steps
        self._permits = 0
        self._doing = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"main-{coordinator.member}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stand_in(self, step: int) -> None:
        """Trains up to the step, and stays in it."""
        self.let_train(step)
        self.await_doing(f"step {step}")

    def let_train(self, steps: int = EVER) -> None:
        """Lets the main thread end its first `steps` steps."""
        with self._changed:
            self._permits = steps
            self._changed.notify_all()

    def await_doing(self, what: str) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._doing == what or self.error, PATIENCE)
            assert done, f"{self._doing!r} instead of {what!r}"
            assert self.error is None

    def join(self) -> None:
        self.let_train()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"the main thread still does {self._doing!r}"

    @property
    def trains(self) -> bool:
        return self._thread.is_alive()

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events.told if name == kind]

    def _run(self) -> None:
        try:
            self._fit()
        except BaseException as error:
            self.error = error
            self.runtime.close(f"{error}")
        self._now("nothing more")

    def _fit(self) -> None:
        for step in range(self._steps):
            self.runtime.entered += 1
            if self.runtime.attention:
                self._now(f"boundary {step}")
                plan = self.runtime.boundary(Position(0, "train", step + self.ahead, step))
                if plan is not None:
                    self._now(f"plan {len(self.acted)}")
                    self.acted.append((step, plan))
                    assert self.saving is None or self.saving.wait(PATIENCE)
                    if not plan.goes_on:
                        return self.runtime.leave()
                    self.runtime.acted()
            self._train(step)
        self._now("last boundary")
        plan = self.runtime.finish(Position(1, "end", 0, self._steps))
        if plan is not None:
            self.acted.append((self._steps, plan))
        self.finished = True
        self.runtime.leave()

    def _train(self, step: int) -> None:
        self._now(f"step {step}")
        with self._changed:
            assert self._changed.wait_for(lambda: self._permits > step, PATIENCE), f"left in step {step}"
            self.trained = step + 1

    def _now(self, what: str) -> None:
        with self._changed:
            self._doing = what
            self._changed.notify_all()


class Job:
    """The workers of one fit; ends them all when it is left."""

    def __init__(self, members: int, steps: int = 8, *, alive: int | None = None) -> None:
        self.service = MemoryService(members)
        coordinators = self.service.coordinators()
        self.workers = [Worker(coordinator, steps) for coordinator in coordinators[:alive]]

    def start(self) -> None:
        """Every runtime starts, and every main thread trains until it is stopped in a step."""
        for worker in self.workers:
            worker.runtime.start()
        for worker in self.workers:
            worker.begin()

    def stand_in(self, *steps: int) -> None:
        """Starts, and brings each worker into its step."""
        self.start()
        for worker, step in zip(self.workers, steps, strict=True):
            worker.stand_in(step)

    def hold(self) -> Callable[[], None]:
        """Worker 0 is noticed in step 2, and stands at its boundary until what is returned lets 1 answer."""
        release = self.service.hold_back("put", lambda member, key: "/at/1" in key)
        self.workers[0].runtime.notify(notice(0))
        self.service.await_key("/at/0")
        self.workers[0].let_train()
        self.workers[0].await_doing("boundary 3")
        return release

    def end(self) -> None:
        """Lets everyone train on, and waits for everyone."""
        for worker in self.workers:
            worker.let_train()
        for worker in self.workers:
            worker.join()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self.service.lose()
            for worker in self.workers:
                worker.let_train()
                worker.runtime.close("the test has failed")


def notice(member: int = 0, source: str = "signal") -> Notice:
    return Notice(source, f"SIGTERM to {member}", received_at=0.0)


def give_up_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait of a round that begins from now on ends after that time."""
    for name in ("ALIGNMENT_TIMEOUT", "PLAN_MARGIN", "LEADER_WAIT"):
        monkeypatch.setattr(f"keras_preempt.agreement.delegate.{name}", seconds)


@contextlib.contextmanager
def bounded_rounds(monkeypatch: pytest.MonkeyPatch, seconds: float = PATIENCE) -> Iterator[None]:
    """Rounds give up after that time, which no test waits out unless it says so; afterwards no thread is left."""
    give_up_after(seconds, monkeypatch)
    before = set(threading.enumerate())
    yield
    limit = time.monotonic() + PATIENCE
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("keras_preempt", "main-", "Thread-")):
            thread.join(max(0.0, limit - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} was left behind"
