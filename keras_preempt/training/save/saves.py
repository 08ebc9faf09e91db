"""The saves of one fit, in their order: at once when the fit is to end, in the background when it goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from keras_preempt.agreement.alignment import without
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.layout import step_of
from keras_preempt.process.threads import started
from keras_preempt.process.words import counted, numbered
from keras_preempt.report.progress import InBackground
from keras_preempt.state.component import Content
from keras_preempt.training.save.memory_saves import MemorySaves
from keras_preempt.training.save.pace import Pace
from keras_preempt.training.save.saver import Saved, Saver
from keras_preempt.training.save.schedule import NEVER, Schedule
from keras_preempt.training.save.session import Session
from keras_preempt.training.save.waiting import tell_not_saved

logger = logging.getLogger("keras_preempt")

_RESOURCE_EXHAUSTED = 8  # The code by which both backends say that there is no memory.

WAIT_LIMIT = 3600.0
"""Seconds; every step of a save has its own, much shorter limit."""


class Saves:
    """Decides when and how this fit is saved: what `session` holds, by `saver`, and told to `pace`.

    Attributes:
        saver: See above.
        memory: What is saved in memory besides; None for nothing.
        committed: The folder of the checkpoint that was committed last, as far as this worker knows; at first
            the one that was restored, None if there is none.
        after_start: Called when the first step is done, or none was left: what was restored has served. Given whether
            to wait for what it does.
        on_capture: Called when the state is about to be captured for a save.
        on_saved: Called when a save has ended, in its thread: with when its state was captured, in monotonic seconds,
            and with the folder of the checkpoint, None if there is none.
    """

    def __init__(self, session: Session, saver: Saver, schedule: Schedule, members: int, pace: Pace) -> None:
        self._session = session
        self.saver = saver
        self._schedule = schedule
        self._pace = pace
        self._everyone = tuple(range(members))
        self._background = BackgroundSave()
        self._watch = InBackground()
        self._training_waits = threading.Event()  # For the save in flight.
        self._started: Position | None = None
        self.committed: str | None = None
        self.memory: MemorySaves | None = None
        self.after_start: Callable[[bool], None] = lambda wait: None
        self.on_capture: Callable[[], None] = lambda: None
        self.on_saved: Callable[[float, str | None], None] = lambda captured_at, name: None
        # Whether training goes on after a notice, and the save that was made at it is not committed yet.
        self._final_save_pending = False

    def begin(self, position: Position | None) -> None:
        """The fit begins at `position`: there is nothing to save until it is further."""
        self._started = position
        self.committed = self._session.committed
        if self.memory is not None and position is not None:
            self.memory.begin(position)

    def at_once(self, plan: Plan, position: Position, given_up: Callable[[], bool] = lambda: False) -> Saved:
        """Saves, and returns when that is done. A save in flight is cancelled, unless it is as good.

        `given_up` says whether the save can no longer be completed; it is asked while others are waited for.
        """
        began = time.time()
        finishing = position.phase == "end"  # It is saved as the end, whichever worker called the round.
        if self._session.resuming and not finishing:
            return self._nothing_trained(plan)
        busy = self._background.busy
        before: Saved | None = None
        if finishing:
            before = self.wait()
        elif (in_flight := self._background.position) is not None and in_flight.step == position.step:
            before = self.wait()
            if before is not None and before.name is not None:
                self.on_saved(time.monotonic(), before.name)
                return Saved(before.name, time.time() - began, before.missing)
        elif plan.kind is Kind.DEADLINE and self._final_save_pending:
            before = self.wait()  # A checkpoint of some steps ago is better than none of now.
        else:
            self._background.cancel()
        self._pace.save_began()
        self.on_capture()
        captured_at = time.monotonic()
        gone: set[int] = set()
        alone = busy and before is not None and before.cut
        if before is not None and alone:
            # No time is left to wait for others, only to write. They may be making the save that was planned.
            self.saver.skip()
            plan = self._without(before.late, gone, plan, position)
        content: Content | None = None
        while True:
            try:
                content = content or self._session.capture(position)
                prepared = self.saver.prepare(plan, position, content, copy=False, began_at=began, gone=gone)
            except Exception as error:  # Such as pieces that are lost: trying again brings nobody back.
                return self._not_begun(position, error, began, captured_at)
            # What it waits for others says nothing about how long it takes to write everything: pace forgets it.
            saved = self._ended(
                self.saver.write(prepared, given_up, on_written=self._pace.saved, alone=alone)
            )
            if not saved.late:
                self.on_saved(captured_at, saved.name)
                return saved
            alone = alone or saved.cut
            plan = self._without(saved.late, gone, plan, position)

    def _without(self, late: tuple[int, ...], gone: set[int], plan: Plan, position: Position) -> Plan:
        """The plan for those who are left, when `late` have turned out to be missing, too.

        Each call removes at least one writer, so this ends.
        """
        gone.update(late)
        if gone.isdisjoint(plan.writers):  # They only had to write pieces of divided values.
            return plan
        plan = without(plan, sorted(gone), self._everyone, self.saver.member)
        logger.warning(
            "Gone, or too late: %s. The checkpoint at step %s is written by %s instead.",
            numbered("worker", late),
            position.step,
            numbered("worker", plan.writers),
        )
        return plan

    def in_background(self, plan: Plan, position: Position) -> float:
        """Copies the state to host memory, and writes it while training goes on; unless it is there already.

        Returns how long training was held up, in seconds.
        """
        if self._session.resuming:
            # Too early to save: state that Keras reset is not restored yet.
            return self._nothing_trained(plan).seconds
        began = time.time()
        self._training_waits.set()
        self._background.wait()  # At most one: memory for one copy, and the order of saves.
        self._pace.save_began()
        self._final_save_pending = plan.kind is Kind.PREEMPTED
        self.on_capture()
        captured_at = time.monotonic()
        try:
            content = self._session.capture(position)
            try:
                prepared = self.saver.prepare(plan, position, content, copy=True, began_at=began)
            except MemoryError:
                logger.warning("Training waits for the save at step %s: no memory for a copy.", position.step)
                prepared = self.saver.prepare(plan, position, content, copy=False, began_at=began)
        except Exception as error:
            return self._not_begun(position, error, began, captured_at).seconds
        watch, waits = InBackground(), threading.Event()
        self._watch, self._training_waits = watch, waits
        written: list[float] = []

        def awaited() -> bool:
            if waits.is_set() and written:
                # What it has waited for others says nothing about how long it takes to write everything.
                self._pace.saved(written.pop())
            return waits.is_set()

        def write(cancelled: Callable[[], bool]) -> Saved:
            saved = self._ended(
                self.saver.write(
                    prepared, cancelled, watch.transfer, awaited=awaited, on_written=written.append
                )
            )
            self.on_saved(captured_at, saved.name)
            return saved

        if not prepared.background:
            waits.set()
        self._background.start(position, write, waits.set)
        if not prepared.background:
            self._background.wait()
        return time.time() - began

    def _nothing_trained(self, plan: Plan) -> Saved:
        session = self._session
        logger.info("Nothing was trained since %s was restored.", session.restored_name)
        saved = Saved(session.restored_name, 0.0)
        if session.in_memory is not None:  # The memory may be gone with the machines.
            saved = Saved(None, 0.0)
            if self.memory is not None:
                saved = self._ended(self.saver.store(session.in_memory, self.memory.memory, plan.kind))
        self.on_saved(time.monotonic(), saved.name)
        return saved

    def _not_begun(self, position: Position, error: Exception, began: float, captured_at: float) -> Saved:
        """This worker has nothing to write, whatever the others do: a failed save, and not the end of training.

        Raises the error again if the step raised it that computes the values: it is training that has failed.
        """
        if backend().errors.described(error)[0] not in (0, _RESOURCE_EXHAUSTED):
            raise error
        self.saver.skip()
        tell_not_saved(position.step, error)
        self.on_saved(captured_at, None)
        return self._ended(Saved(None, time.time() - began))

    def scheduled(self, position: Position) -> None:
        """Makes the save that the schedule asks for at this boundary, if it does; every worker calls this."""
        last = self._background.position or self._started
        if not self._session.resuming and self._schedule.due(position, last):
            self.in_background(Plan(0, Kind.PERIODIC, self._everyone, ()), position)
        if self.memory is not None and position.phase == "train":
            self.memory.look(position)

    def next_boundary(self, entered: int, position: Position, steps_per_execution: int) -> int:
        """The number of the first boundary that may be due, after `entered` of them, at the last of which it stands."""
        due = NEVER if self.memory is None else self.memory.next_boundary(entered, position)
        left = self._schedule.steps_left(position.step or 0)
        if left is None:
            return due
        if position.phase != "train":
            return entered + 1  # The next one may be training's, at this very step.
        return min(due, entered + -(-left // steps_per_execution))

    def _ended(self, saved: Saved) -> Saved:
        self._pace.saved(None if saved.name is None else saved.seconds)
        if saved.name is not None:
            self.committed = saved.name
            self._final_save_pending = False
        return saved

    @property
    def step_in_flight(self) -> int | None:
        """The step of the checkpoint that is being written while training goes on; None if there is none."""
        at = self._background.position
        return at.step if at is not None and self._background.busy else None

    @property
    def safe_step(self) -> int:
        """The step of the last checkpoint that this worker knows of, also in memory; 0 for none."""
        stored = 0 if self.committed is None else step_of(self.committed) or 0
        return stored if self.memory is None else max(stored, self.memory.kept)

    def at_risk(self) -> str:
        """What is lost if no save succeeds from now on, as far as this worker knows, in words."""
        if self.committed is None:
            return "everything that was trained"
        return f"what was trained since step {step_of(self.committed)}"

    def tell_what_is_lost(self, plan: Plan, position: Position, *, uncertain: bool = False) -> None:
        """Logs that the fit ends without a save at `position`, and what is lost."""
        last = self.committed
        message = (
            "Preempted, and NOT KNOWN whether saved at step %s. If it is not, the restarted job %s: %s is lost%s."
            if uncertain
            else "Preempted, and NOT saved at step %s. As far as this worker knows, the restarted job %s: %s is lost%s."
        )
        if plan.kind is Kind.INTERRUPTED:
            message = message.replace("Preempted", "Interrupted")
        logger.error(
            message,
            position.step,
            "starts from the beginning" if last is None else f"continues from {last}",
            self.at_risk(),
            "" if last is None else f" ({counted((position.step or 0) - (step_of(last) or 0), 'step')})",
        )

    def wait(self) -> Saved | None:
        """Waits for the save in flight, and shows its progress; returns the outcome of the last one, or raises."""
        self._training_waits.set()
        with self._watch.waited_for():
            return self._background.wait()

    def end(self) -> None:
        """Gives up the save in flight when the fit is left during one; raises its error."""
        self._background.cancel()


class BackgroundSave:
    """The save in flight, if any: the outcome of the `last` that ended, and the `position` of the last begun."""

    def __init__(self) -> None:
        self.last: Saved | None = None
        self.position: Position | None = None
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._error: BaseException | None = None

    def start(
        self,
        position: Position,
        write: Callable[[Callable[[], bool]], Saved],
        waits: Callable[[], object] = lambda: None,
    ) -> None:
        """Begins a save, after the one in flight has ended.

        `write` makes it, and is given a function that says whether to give up. `waits` is called if training waits for
        it here, because no thread could be started.
        """
        self.wait()
        self.position = position
        self._cancelled.clear()

        def run() -> None:
            try:
                self.last = write(self._cancelled.is_set)
            except BaseException as error:  # Raised again in the main thread, by `wait`.
                self._error = error

        self._thread = started(run, "keras_preempt-save")
        if self._thread is None:  # A limit on the number of threads, such as a container's.
            logger.warning(
                "Training waits for the save at step %s: no thread could be started.", position.step
            )
            waits()
            run()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Saved | None:
        """Waits for the save in flight; returns the outcome of the last one, or raises what the thread raised."""
        if self._thread is not None:
            self._thread.join(WAIT_LIMIT)
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.last

    def cancel(self) -> None:
        """Makes the save in flight give up between two files, and waits for it."""
        self._cancelled.set()
        self.wait()
