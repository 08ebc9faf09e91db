"""A fit on a simulated clock, which decides by the package's own `Pace`, `Standing` and `grace`.

One worker is enough: what the workers tell each other takes milliseconds, and is explored elsewhere. For a table of how
much of a grace period is used, and how many deadlines are missed::

    python -m tests.training.grace_simulator
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

from keras_preempt.notices import Notice
from keras_preempt.training import grace
from keras_preempt.training.pace import SAVE_RATE, Pace
from keras_preempt.training.standing import Standing

_ROUND = 0.01  # seconds of a round
_LEAVING = 1.0  # seconds from the commit until the process is gone, at most


class Fit:
    """Trains, is notified, saves and trains on, and leaves.

    Args:
        choose: The randomness.
        step: Seconds of a usual step.
        save: Seconds of a usual save.
        slow_downs: Whether a step or a save may suddenly take up to twice as long as any before, and leaving up to a
            second.
        expected_save: Seconds of a save that is expected before one was measured.
        measured: Whether a save was measured before the notice.

    Attributes:
        now: Seconds, by every clock.
        steps: Steps trained.
        committed_steps: Steps that the newest checkpoint has.
        had_room: Whether there was time to train on after the first save.
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
        self.now = 1.7e9
        self.steps = 0
        self.committed_steps = 0
        self.steps_after_notice = 0
        self.had_room = False
        self.last_step_ended = self.now
        self._choose = choose
        self._step, self._save = step, save
        self._first_save = save
        self._slow_downs = slow_downs
        self._pace = Pace(lambda: self.now)
        self._pace.to_save = int((save if expected_save is None else expected_save) * SAVE_RATE)
        if measured:
            self._pace.saved(save)
        self._standing = Standing()
        self._saving: tuple[float, int] | None = None  # When the save in flight ends, and its steps.
        self._notified = False
        self._pace.leave(0)

    def notify(self, notice: Notice) -> None:
        first = not self._standing
        self._standing.add(replace(notice, heard_at=notice.received_at))  # Both on the simulated clock.
        if first:
            self._notified = True
            # It comes in the middle of a step, which ends before anything is done.
            self._train()
            reserve = self._pace.reserve(self.steps)
            self.had_room = grace.has_room(self._standing.gone_by, notice.received_at, reserve)
            self.now += _ROUND
            self._pace.aligned(_ROUND)
            if self.had_room:
                self._first_save = self._save * self._choose.uniform(0.8, 1.2)
                self._saving = (self.now + self._first_save, self.steps)
                self._pace.save_began()
                self._pace.leave(self.steps)

    def train_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._train()

    def run_to_the_end(self) -> float:
        """Trains until it has left; returns when that was."""
        if self.had_room:
            while not self._last_call_is_due():
                self._train()
            self._train()  # The call comes right after a step has begun.
            self.now += _ROUND
        if self._saving is not None and self.committed_steps == 0:
            self.now = max(self.now, self._saving[0])
        self.now += self._first_save * self._choose.uniform(1.0, 2.0 if self._slow_downs else 1.0)
        self.committed_steps = self.steps
        if self._slow_downs:
            self.now += self._choose.uniform(0.0, _LEAVING)
        return self.now

    def _last_call_is_due(self) -> bool:
        reserve = self._pace.reserve(self.steps)
        return self.now >= grace.last_call_at(self._standing.gone_by, reserve)

    def _train(self) -> None:
        sudden = self._slow_downs and self._choose.random() < 0.05
        self.now += self._step * (
            self._choose.uniform(1.0, 2.0) if sudden else self._choose.uniform(0.8, 1.2)
        )
        self.steps += 1
        self.last_step_ended = self.now
        self.steps_after_notice += self._notified
        if self._saving is not None and self._saving[0] <= self.now:
            self.committed_steps = self._saving[1]
            self._pace.saved(self._first_save)
            self._saving = None
        if self._notified or self.steps % 100 == 0:  # The boundaries that are looked at.
            self._pace.enter(self.steps)
            self._pace.leave(self.steps)


def main() -> None:
    """Prints what becomes of grace periods of several lengths, with steps and saves of several."""
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
