"""Simulates a training job step by step on machines that are taken away at random, to hold docs/cost.py against it."""

from __future__ import annotations

import heapq
import random
from typing import Any


def simulate(job: Any, interval: float, interruptions: int, seed: int) -> tuple[float, float]:
    """Returns the goodput, and the mean seconds of training that were lost without a notice; 0 if all came with one.

    Goodput is the time that the steps that were kept take, over the time that went by.

    Every machine is taken away at moments of its own (exponential times between them), also while the job starts. With
    a notice the step is finished and a checkpoint written. Without one, training continues with the newest checkpoint
    that was complete by then.

    Args:
        job: A `Job` of docs/cost.py.
        interval: Seconds of training between two saves in the background; infinite for none.
        interruptions: How many interruptions of training are simulated.
        seed: Of the random numbers.
    """
    draw = random.Random(seed)
    machine_rate = job.rate / job.workers
    taken = [draw.expovariate(machine_rate) for _ in range(job.workers)]
    heapq.heapify(taken)

    def next_one() -> float:
        """Takes the next interruption out, and draws the one that follows on that machine."""
        at = heapq.heappop(taken)
        heapq.heappush(taken, at + draw.expovariate(machine_rate))
        return at

    clock, kept = 0.0, 0
    lost = []
    every = max(round(interval * job.speed), 1) if interval != float("inf") else None
    copy = job.state / (job.workers * job.memory)
    for _ in range(interruptions):
        done = kept
        complete: list[tuple[float, int]] = []  # When a checkpoint is complete, and its step.
        written_until = clock
        while True:
            slow = 1 - job.slowdown if clock < written_until else 1.0
            end = clock + 1 / (job.speed * slow)
            if end > taken[0]:
                break
            clock, done = end, done + 1
            if every and (done - kept) % every == 0 and clock >= written_until:
                clock += copy
                written_until = clock + job.write
                complete.append((written_until, done))
        at = max(next_one(), clock)
        if draw.random() < job.noticed:
            clock, kept = end + job.write, done + 1
            while taken[0] < clock:  # Nobody can be interrupted twice: the job leaves anyway.
                next_one()
        else:
            clock = at
            kept = max([kept, *(step for when, step in complete if when <= at)])
            lost.append((done - kept) / job.speed)
        ready = clock + job.away
        while taken[0] < ready:  # A machine is taken away while the job starts: it starts anew.
            ready = max(next_one(), clock) + job.away
        clock = ready
    return kept / job.speed / clock, sum(lost) / max(len(lost), 1)
