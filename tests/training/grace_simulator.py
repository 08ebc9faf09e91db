"""A fit on a simulated clock, which is driven by the package's own `Runtime` with its threads.

The clock, the saver and the steps are simulated; the notices, the rounds of one worker, the measuring and the countdown
are those of a fit. One worker is enough: what several do about each other's calls is explored elsewhere. For a table of
how much of a grace period is used, and how many deadlines are missed::

    python -m tests.training.grace_simulator
"""

from __future__ import annotations

import logging
import math
import random
import statistics
from dataclasses import replace

from keras_preempt.agreement.coordinator import LocalCoordinator
from keras_preempt.agreement.grace import lead
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.notices import Notice
from keras_preempt.report.events import EventLog
from keras_preempt.training.run.runtime import Runtime
from keras_preempt.training.save.pace import SAVE_RATE

_ROUND = 0.01  # seconds of a round
_LEAVING = 1.0  # seconds from the commit until the process is gone, at most
_PATIENCE = 60.0  # seconds of the real clock, after which a thread of the runtime is taken for stuck


class Clock:
    now = 1.7e9

    def __call__(self) -> float:
        return self.now


class _Coordinator(LocalCoordinator):
    """Takes the simulated time of a round to insert its plan."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def put_if_absent(self, key: str, value: str) -> bool:
        if key.endswith("/plan"):
            self._clock.now += _ROUND
        return super().put_if_absent(key, value)


_ROUNDED = 1e-6
"""Seconds that a sum of moments may be too small. The countdown would wake up when they are over; this clock stands."""


class Fit:
    """Trains, is notified, saves and trains on, and leaves.

    Args:
        step, save: Seconds of a usual one.
        slow_downs: Whether a step or a save may suddenly take up to twice as long as any before, and leaving up to a
            second.
        expected_save: Seconds of a save that is expected before one was measured.
        measured: Whether a save was, before the notice.

    Attributes:
        committed_steps: Steps that the newest checkpoint has.
        had_room: Whether the first save was not the last one.
    """

    def __init__(
        self,
        choose: random.Random,
        *,
        step: float,
        save: float,
        slow_downs: bool,
        expected_save: float | None = None,
        measured: bool = False,
    ) -> None:
        self.steps = 0
        self.committed_steps = 0
        self.steps_after_notice = 0
        self.had_room = False
        self.left = False
        self._clock = Clock()
        self.last_step_ended = self.now
        self._choose = choose
        self._step, self._save = step, save
        self._first_save = save
        self._slow_downs = slow_downs
        self._saving: tuple[float, int] | None = None  # When the save in flight ends, and its steps.
        self._rounds = 0
        self._coordinator = _Coordinator(self._clock)
        self._runtime = Runtime(self._coordinator, EventLog(0), fit=1, clock=self._clock)
        self._pace = self._runtime.pace
        self._pace.to_save = int((save if expected_save is None else expected_save) * SAVE_RATE)
        if measured:
            self._pace.saved(save)
        self._runtime.start()
        self._pace.leave(0)

    @property
    def now(self) -> float:
        """Seconds, by every clock."""
        return self._clock.now

    def notify(self, notice: Notice) -> None:
        """It comes in the middle of a step, which ends before anything is done."""
        counting = self.had_room
        self._runtime.notify(replace(notice, heard_at=notice.received_at))  # Both on the simulated clock.
        if counting:
            self._countdown_may_call()
        else:
            self._await_plan()
            self._train()

    def train_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._train()

    def reserve(self) -> float:
        return self._runtime.reserve()

    def run_until(self, ends_at: float) -> float:
        """Trains until its time limit is due, is notified of that in the middle of a step, and runs to the end."""
        while self.now < ends_at - lead(self.reserve()):
            self._train()
        now = self.now
        self.notify(Notice("time limit", "its time is over", now, ends_at, foreseen=True))
        return self.run_to_the_end()

    def run_to_the_end(self) -> float:
        while not self.left:
            self._train()
        return self.now

    def _await_plan(self) -> None:
        """Waits for the plan of this round. It may be there, or be made already: the countdown has a thread of its own,
        which also wakes up when so many real seconds are over, and this clock stands until its call is planned."""
        self._coordinator.wait_for(f"keras_preempt/1/{self._rounds}/plan", _PATIENCE)

    def _countdown_may_call(self) -> None:
        """The countdown wakes up by itself when its time has come; only its clock has to be told of that."""
        due = self._runtime.trains_on_for
        if due == 0.0:
            with self._runtime._delegate.changed:
                self._runtime._delegate.changed.notify_all()
        if due is None or due == 0.0:  # None: it was faster than this thread, and has called.
            self._await_plan()

    def _pass_time(self, until: float) -> None:
        """Lets the clock go on to where the countdown calls, if it does by then."""
        if not self.had_room:
            return  # There is no countdown.
        due = self._runtime.trains_on_for
        if due is not None and self.now + due <= until:
            self._clock.now += due
            while 0 < (self._runtime.trains_on_for or 0) < _ROUNDED:
                self._clock.now = math.nextafter(self.now, math.inf)
        self._countdown_may_call()

    def _train(self) -> None:
        sudden = self._slow_downs and self._choose.random() < 0.05
        least, most = (1.0, 2.0) if sudden else (0.8, 1.2)
        ends = self.now + self._step * self._choose.uniform(least, most)
        if self._saving is not None:
            self._pass_time(min(self._saving[0], ends))
        self._end_save(ends)
        self._pass_time(ends)
        self._clock.now = max(self.now, ends)
        self.steps += 1
        self.last_step_ended = self.now
        self.steps_after_notice += bool(self._runtime.notices)
        self._runtime.entered += 1
        if self._runtime.attention or self.steps % 100 == 0:  # The boundaries that are looked at.
            plan = self._runtime.boundary(Position(0, "train", self.steps, self.steps))
            if plan is not None:
                self._act(plan)

    def _end_save(self, until: float) -> None:
        if self._saving is not None and self._saving[0] <= until:
            self._clock.now = max(self.now, self._saving[0])
            self.committed_steps = self._saving[1]
            self._pace.saved(self._first_save)
            self._saving = None

    def _act(self, plan: Plan) -> None:
        self._rounds += 1
        if plan.goes_on:
            self.had_room = True
            self._first_save = self._save * self._choose.uniform(0.8, 1.2)
            self._saving = (self.now + self._first_save, self.steps)
            self._pace.save_began()
            self._runtime.acted()
            return
        assert plan.kind is (Kind.DEADLINE if self.had_room else Kind.PREEMPTED)
        if self.committed_steps == 0:  # Else the save in flight gives way.
            self._end_save(float("inf"))
        self._clock.now += self._first_save * self._choose.uniform(1.0, 2.0 if self._slow_downs else 1.0)
        self.committed_steps = self.steps
        if self._slow_downs:
            self._clock.now += self._choose.uniform(0.0, _LEAVING)
        self.left = True
        self._runtime.leave()


def main() -> None:
    """Prints what becomes of grace periods of several lengths, with steps and saves of several."""
    logging.getLogger("keras_preempt").setLevel(logging.CRITICAL)
    runs = 500
    print(f"{runs} fits each, slow-downs up to 2x")
    print("grace, s  step, s  save, s  trained on  used, median  deadlines missed")
    for grace_period in (3, 4, 5, 6, 8, 10, 15, 30, 60):
        for step, save in ((0.05, 0.05), (0.05, 0.5), (0.5, 0.5), (0.5, 2.0)):
            used, trained_on, missed = [], 0, 0
            for seed in range(runs):
                fit = Fit(random.Random(seed), step=step, save=save, slow_downs=True)
                fit.train_for(200 * step)
                began = fit.now
                fit.notify(Notice("gce", "maintenance", began, began + grace_period))
                end = fit.run_to_the_end()
                trained_on += fit.had_room
                used.append((fit.last_step_ended - began) / grace_period)
                missed += fit.had_room and end > began + grace_period
            print(
                f"{grace_period:8}  {step:7}  {save:7}  {trained_on / runs:10.0%}  {statistics.median(used):12.0%}"
                f"  {missed:16}"
            )


if __name__ == "__main__":
    main()
