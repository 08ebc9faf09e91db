"""Chooses when and whom a drill preempts."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

__all__ = ["Preemption", "plan_preemptions"]


@dataclass(frozen=True)
class Preemption:
    """One real SIGTERM.

    Attributes:
        member: the worker that gets it.
        step: the training step before which it gets it, counted from 0 over the whole run.
    """

    member: int
    step: int

    def to_json(self) -> str:
        """Returns the value of the drill's environment variable."""
        return json.dumps({"member": self.member, "step": self.step})

    def __str__(self) -> str:
        return f"w{self.member} at step {self.step}"


def plan_preemptions(seed: int, count: int, total_steps: int, members: int) -> list[Preemption]:
    """Draws ``count`` distinct steps from 1 to ``total_steps - 1``, and a member for each; sorted by step.

    The same arguments give the same plan.

    Raises:
        ValueError: the run has too few steps.
    """
    if count > total_steps - 1:
        raise ValueError(
            f"Expected a run of at least {count + 1} training steps for --preempt {count}. Received: a run "
            f"of {total_steps}. Train for longer or preempt less often."
        )
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(1, total_steps), count))
    return [Preemption(chance.randrange(members), step) for step in steps]
