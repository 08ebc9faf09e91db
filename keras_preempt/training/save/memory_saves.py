"""Saves in the memory of the machines, every few seconds, for a restart after one of them is lost without notice.

A save begins at a boundary that all workers know beforehand. Each copies its share of what all hold, and that of its
neighbour, which it holds as well; so none of that goes over the network. A thread writes both to tmpfs and exchanges
with the neighbour what only one worker has (its own values, the position of its input) over the coordination service.
When all have told worker 0 that they are done, it tells all of them so, with the step of the next save. Then the older
checkpoint goes: until every worker has the newer one, each has the older one.

No worker waits for another while it trains. If a worker fails, or hears of the next step too late, that save is
dropped everywhere, and worker 0 names another step.

::

    own/3       JSON: what worker 3 alone has, for the worker that keeps it as well
    done/3      JSON: whether worker 3 has everything, where, and what it took
    all         JSON by worker 0: whether all have, and the step of the next save
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.messages import Position, key
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.layout import attempt_name
from keras_preempt.checkpoint.machine_memory import MachineMemory
from keras_preempt.checkpoint.manifest import Part
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.process.threads import started
from keras_preempt.state.model import ModelState
from keras_preempt.training.save.memory_options import MemoryOptions
from keras_preempt.training.save.own_state import GIVEN_UP, packed, unpacked
from keras_preempt.training.save.saver import fetched, stored_together
from keras_preempt.training.save.schedule import NEVER
from keras_preempt.training.save.session import Session

logger = logging.getLogger("keras_preempt")

SHARE = 0.01
"""The most of the time of training that saves in memory may take with "auto"."""

SHORTEST = 2.0
"""Seconds from one to the next with "auto"."""

MOST_TOLD = 64 << 20
"""Bytes that all workers together tell each other in one save: they go through the process of worker 0."""

PATIENCE = 60.0
"""Seconds that a worker's thread waits for another one's; worker 0's answer takes twice that."""

SETTLED = 16
"""Training steps after which it is known how fast training is."""

_EXPECTED_RATE = 500e6  # bytes a second that a save takes before one was measured
_HEARD = 0.2  # seconds within which every worker has heard of the next step
_TOLD = 2  # The number of the save after which its cost is told: the first one finds all cold.


@dataclass
class _Save:
    """One save: what this worker keeps of each worker, on the host."""

    number: int
    position: Position
    per_step: float  # Seconds that a training step takes.
    began: float
    attempt: Attempt | None = None  # None if this worker could not take part.
    boxes: dict[int, list[tuple[Any, Array]]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Array] = field(default_factory=dict)
    held_up: float = 0.0  # Seconds that training waited for it.


class MemorySaves:
    """Saves one fit in memory. The main thread calls `look` at boundaries of training.

    Args:
        options: See `MemoryOptions`.
        memory: Where this worker keeps what; prepared.
        session: The state of the fit, whose variables are those of `model`.
        coordinator: Numbers the workers; `fit` numbers the fit in this process.
        incarnation: The number of this start.
        host: Tells this machine from others.
        poke: Makes the main thread look at its next boundary.
        on_kept: Told the step of each save that all workers have.

    Attributes:
        due: The step of the next save; `NEVER` while one is going on.
        kept: The step of the last save that all workers have; 0 for none.
    """

    def __init__(
        self,
        options: MemoryOptions,
        memory: MachineMemory,
        session: Session,
        model: ModelState,
        coordinator: Coordinator,
        fit: int,
    ) -> None:
        self.due, self.kept = NEVER, 0
        self.incarnation = 0
        self.host = ""
        self.poke: Callable[[], None] = lambda: None
        self.on_kept: Callable[[int], None] = lambda step: None
        self._options = options
        self.memory = memory
        self._session = session
        self._model = model
        self._coordinator = coordinator
        self._prefix = key(fit, 0, "memory")
        self._member, self._members = coordinator.member, coordinator.members
        self._copies = min(options.copies, self._members - 1)
        self._shift = 1
        self._number = 0
        self._measured: tuple[float, int] | None = None  # When the main thread was where.
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._stopped = False
        self._awaited = ""
        self._told: set[str] = set()

    # -- The main thread ----------------------------------------------------------------------------

    def begin(self, position: Position) -> None:
        self.due = (position.step or 0) + 1

    def next_boundary(self, entered: int, position: Position) -> int:
        """The number of the boundary at which to look next, after `entered` of them."""
        if self.due == NEVER:
            return NEVER
        if position.phase != "train":
            return entered + 1
        steps = self.due - (position.step or 0)
        return entered + max(1, -(-steps // self._session.steps_per_execution))

    def look(self, position: Position) -> None:
        """Begins a save if this is where it is due; every worker calls this."""
        step = position.step or 0
        if step < self.due or self._session.resuming or self._stopped:
            return
        now = time.monotonic()
        if self._measured is None:  # From here: the first step is traced and compiled.
            by_steps = self._options.schedule is not None and self._options.schedule.steps is not None
            self._measured, self.due = (now, step), step + (1 if by_steps else SETTLED)
            return
        before, at = self._measured
        save = _Save(self._number, position, (now - before) / max(1, step - at), now)
        self._number += 1
        self.due = NEVER
        if self._thread is not None:
            self._thread.join()  # It has named this step, and is about to end.
        if save.number > 0:
            self._capture(save)
        now = time.monotonic()
        save.held_up, self._measured = now - save.began, (now, step)
        self._thread = started(self._run, "keras_preempt-memory", save)
        if self._thread is None:
            self._tell("no thread could be started")

    def stop(self) -> None:
        """Ends the save that is going on. Can be called twice."""
        with self._guard:
            self._stopped = True
            awaited = self._awaited
        if awaited:
            self._put(awaited, GIVEN_UP)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)
        self.memory.close()

    def remove(self) -> None:
        """The fit is saved elsewhere, as far as it came: nothing in memory is needed any more."""
        self.stop()
        self.memory.remove()

    def _capture(self, save: _Save) -> None:
        try:
            content = self._session.capture(save.position)
            attempt = Attempt(
                step=save.position.step or 0,
                name=attempt_name(self.incarnation, save.number),
                position={**asdict(save.position), "step": save.position.step or 0},
                kind=machine_memory.KIND,
                members=self._members,
                writers=tuple(range(self._members)),
                versions=backend().versions(),
                values=stored_together(self._model, content),
            )
            for member in self._kept():
                save.boxes[member] = fetched(self._model, attempt.boxes.get(member, ()), content, copy=True)
            save.local = {**self._model.capture_local(copy=True), **content.values.local}
            save.state, save.attempt = content.state, attempt
        except Exception as error:
            # The error of a step that computes the values is one of training.
            if (
                not isinstance(error, (MemoryError, OSError, CheckpointError))
                and backend().errors.described(error)[0]
            ):
                raise
            self._tell(error)

    def _kept(self) -> list[int]:
        """The workers whose parts this one keeps: itself first."""
        return [(self._member + turn * self._shift) % self._members for turn in range(self._copies + 1)]

    # -- The thread of a save -----------------------------------------------------------------------

    def _run(self, save: _Save) -> None:
        attempt = save.attempt
        try:
            done = save.number == 0
            if attempt is not None:
                try:
                    self._write(save, attempt)
                    done = True
                except (CheckpointError, OSError, MemoryError, CoordinationTimeout) as error:
                    self._tell(error)
            everyone, due = self._agree(save, done, save.held_up + time.thread_time())
            if attempt is not None and everyone:
                self.memory.keep_only(attempt.directory)
                self.kept = attempt.step
                self.on_kept(attempt.step)
                if due is not None and self._member == 0 and save.number == _TOLD:
                    steps = due - (save.position.step or 0)
                    logger.info(
                        "Saves in memory: the next one %d steps after the last (about %.2f s); training waits %.0f ms "
                        "for each.",
                        steps,
                        steps * save.per_step,
                        save.held_up * 1000,
                    )
            elif attempt is not None:
                self.memory.discard(attempt.directory)
            if due is not None and not self._stopped:
                self.due = due
                self.poke()
        except Exception as error:  # Whatever it is: training does not depend on it.
            if not self._stopped:
                logger.warning("Nothing is saved in memory any more: %s: %s", type(error).__name__, error)

    def _write(self, save: _Save, attempt: Attempt) -> None:
        """Writes the own part, and those of the neighbours as soon as these have said what only they have."""
        own, *others = self._kept()
        if self._copies:
            message = packed(save.state, save.local, MOST_TOLD // self._members)
            if message == GIVEN_UP:
                self._tell_uncovered(sum(array.nbytes for array in save.local.values()))
            self._put(self._key(save, "own", own), message)

        def written(member: int, state: Mapping[str, Any], local: Mapping[str, Array]) -> Part:
            share = WorkerShare(save.boxes.pop(member), local, state, attempt.position)
            return write_part(self.memory.store, attempt.directory, member, share)

        parts = [written(own, save.state, save.local)]
        for other in others:
            told = self._key(save, "own", other)
            found = unpacked(self._wait(told, PATIENCE))
            self._coordinator.delete(told)
            if found is not None:
                parts.append(written(other, *found))
        self.memory.commit(attempt, parts, time.time())

    def _agree(self, save: _Save, done: bool, cost: float) -> tuple[bool, int | None]:
        """Returns whether all workers have this save, and the step of the next one."""
        mine: dict[str, Any] = {"done": done, "cost": cost, "at": asdict(save.position), "host": self.host}
        if self._member != 0:
            self._put(self._key(save, "done", self._member), json.dumps(mine))
            answer = json.loads(self._wait(self._key(save, "all"), 2 * PATIENCE))
        else:
            told, limit = [mine], time.monotonic() + PATIENCE
            for other in range(1, self._members):
                left = max(0.1, limit - time.monotonic())
                try:
                    told.append(json.loads(self._wait(self._key(save, "done", other), left)))
                except CoordinationTimeout:
                    told.append({**mine, "done": False})
            answer = None
            if None not in told:
                done = save.number > 0 and all(each["done"] and each["at"] == mine["at"] for each in told)
                self._shift = neighbour([each["host"] for each in told]) if save.number == 0 else self._shift
                due = self._next(save, max(each["cost"] for each in told))
                answer = {"done": done, "next": due, "shift": self._shift}
            self._put(self._key(save, "all"), json.dumps(answer))
            if save.number > 0:
                self._coordinator.delete(f"{self._prefix}/{save.number - 1}")
        if answer is None:
            return False, None
        self._shift = int(answer["shift"])
        return bool(answer["done"]), int(answer["next"])

    def _next(self, save: _Save, cost: float) -> int:
        """Returns the step of the next save: as soon as every worker can have heard of it, or as late as is wanted."""
        step, schedule = save.position.step or 0, self._options.schedule
        first = step + 1
        if self._members > 1:  # Else a step that is over already only means at once.
            heard = time.monotonic() - save.began + _HEARD
            first += math.ceil(heard / save.per_step) + self._session.steps_per_execution
        if schedule is not None and schedule.steps is not None:
            return -(-max(first, step + 1) // schedule.steps) * schedule.steps
        seconds = schedule.seconds if schedule is not None and schedule.seconds is not None else None
        if seconds is None:
            expected = self._session.size / _EXPECTED_RATE if save.number == 0 else cost
            seconds = max(SHORTEST, expected / SHARE)
        return max(first, step + math.ceil(seconds / save.per_step))

    def _key(self, save: _Save, *names: str | int) -> str:
        return "/".join((self._prefix, str(save.number), *map(str, names)))

    def _put(self, name: str, value: str) -> None:
        try:
            self._coordinator.put_if_absent(name, value)
        except CoordinationLost:
            if not self._stopped:
                raise

    def _wait(self, name: str, patience: float) -> str:
        with self._guard:
            if self._stopped:
                return GIVEN_UP
            self._awaited = name
        try:
            return self._coordinator.wait_for(name, patience)
        finally:
            with self._guard:
                self._awaited = ""

    def _tell(self, why: object) -> None:
        """Says once that a save in memory has failed."""
        if "failed" not in self._told:
            self._told.add("failed")
            logger.warning(
                "Not saved in memory: %s. Training goes on; it is tried again.", str(why).rstrip(".")
            )

    def _tell_uncovered(self, size: int) -> None:
        if "uncovered" not in self._told:
            self._told.add("uncovered")
            logger.warning(
                "What worker %d alone has is too large for its neighbour to keep (%.0f MB, such as the state of the "
                "input): if this machine is lost, the restart continues from the newest checkpoint in the directory.",
                self._member,
                size / 1e6,
            )


def neighbour(hosts: Sequence[str]) -> int:
    """Returns how far away a worker's neighbour is, so that as many as possible are on another machine."""
    count = len(hosts)

    def elsewhere(shift: int) -> int:
        return sum(hosts[member] != hosts[(member + shift) % count] for member in range(count))

    return max(range(1, max(2, count)), key=lambda shift: (elsewhere(shift), -shift))
