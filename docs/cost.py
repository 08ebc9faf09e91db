"""What preemptions cost a training job, and which `save_every` is best: the formula of docs/cost.md and docs/cost.js.

`python docs/cost.py` writes the table of examples on docs/cost.md; `--check` compares it. Sources: J. W. Young, "A
first order approximation to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A higher order estimate of
the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from generated import main

DAY = 86400.0
INFINITE = math.inf


@dataclass(frozen=True)
class Job:
    """A training job on machines that can be taken away.

    Attributes:
        workers: Machines; the job runs only while it has all of them.
        state: Bytes of a checkpoint.
        bandwidth: Bytes a second to and from storage: of each worker, or of all together if `shared`.
        shared: Whether the workers share the bandwidth, as they do with one disk.
        speed: Training steps a second.
        interruptions: Of one machine in a day.
        noticed: Share of the interruptions that come with a notice that leaves time for a save; 0 to 1.
        restart: Seconds from the end of the processes to the first new step, without the time to read the checkpoint.
        memory: Bytes a second of a copy in memory.
        slowdown: Share of its speed that training loses while a checkpoint is written in the background; 0 to 1.
    """

    workers: int = 8
    state: float = 10e9
    bandwidth: float = 0.5e9
    shared: bool = False
    speed: float = 2.0
    interruptions: float = 1.0
    noticed: float = 0.9
    restart: float = 180.0
    memory: float = 5e9
    slowdown: float = 0.05

    @property
    def rate(self) -> float:
        """Interruptions of the job in a second."""
        return self.workers * self.interruptions / DAY

    @property
    def write(self) -> float:
        """Seconds to write a checkpoint: every worker writes a share."""
        return self.state / (self.bandwidth * (1 if self.shared else self.workers))

    @property
    def away(self) -> float:
        """Seconds without training after an interruption: every worker starts and reads the whole checkpoint."""
        return self.restart + self.state * (self.workers if self.shared else 1) / self.bandwidth

    @property
    def pause(self) -> float:
        """Seconds of training that a save in the background costs: the copy of the worker's share, and the slowdown."""
        return self.state / (self.workers * self.memory) + self.slowdown * self.write


def best_interval(job: Job) -> float:
    """Returns the seconds of training between two saves that lose the least: Daly's estimate.

    It is at least the time to write a checkpoint, since saves follow one another, and infinite where every interruption
    comes with a notice.
    """
    rate = job.rate * (1 - job.noticed)
    if rate == 0:
        return INFINITE
    mean = 1 / rate
    part = job.pause / (2 * mean)
    if part >= 1:
        return max(mean, job.write)
    estimate = math.sqrt(2 * job.pause * mean) * (1 + math.sqrt(part) / 3 + part / 9) - job.pause
    return max(estimate, job.write)


def goodput(job: Job, interval: float) -> float:
    """Returns the share of the wall time in which steps are trained that are kept.

    Interruptions are independent of each other (a Poisson process), so a job is a row of lives of random length. For a
    life of rate r that saves after every `interval` of training, with T = interval + pause, the mean training kept is

        interval * exp(-r * write) / (exp(r * T) - 1)          if it ends without a notice,
        (1 - exp(-r * interval)) / (1 - exp(-r * T)) / r       if it ends with one,

    and the mean wall time is 1 / r, and the save at a notice, and (exp(r * away) - 1) / r for the restart, in which a
    machine can be taken away as well.

    Args:
        job: The job.
        interval: Seconds of training between two saves in the background; infinite for none.
    """
    if job.rate == 0:
        return interval / (interval + job.pause) if math.isfinite(interval) else 1.0
    after_notice, after_kill = kept(job, interval)
    wall = 1 / job.rate + job.noticed * job.write + math.expm1(job.rate * job.away) / job.rate
    return (job.noticed * after_notice + (1 - job.noticed) * after_kill) / wall


def kept(job: Job, interval: float) -> tuple[float, float]:
    """Returns the mean seconds of training that a life leaves behind: with a notice at its end, and without one.

    The difference is what is trained again after an interruption without a notice.
    """
    if not math.isfinite(interval):
        return 1 / job.rate, 0.0
    rate, period = job.rate, interval + job.pause
    after_notice = math.expm1(-rate * interval) / math.expm1(-rate * period) / rate
    return after_notice, interval * math.exp(-rate * job.write) / math.expm1(rate * period)


def duration(seconds: float) -> str:
    """Returns a time as `save_every` takes it, in two digits or whole minutes."""
    if not math.isfinite(seconds):
        return "none"
    if seconds < 90:
        return f"{max(round(seconds), 1)}s"
    return f"{round(seconds / 60)}min" if seconds < 5400 else f"{seconds / 3600:.1f}h"


EXAMPLES = {
    "one machine, a small model": Job(workers=1, state=0.5e9, bandwidth=0.2e9, interruptions=2, speed=10),
    "the values above": Job(),
    "the same, every interruption with a notice": Job(noticed=1.0),
    "the same, none with a notice": Job(noticed=0.0),
    "the same, on one shared disk": Job(shared=True),
    "64 workers, 100 GB": Job(workers=64, state=100e9),
}


def table() -> str:
    """Returns the examples as a table in Markdown."""
    lines = [
        "| job | write a checkpoint | best `save_every` | goodput | without `save_every` |",
        "|---|---|---|---|---|",
    ]
    for words, job in EXAMPLES.items():
        best = best_interval(job)
        shown = f'`"{duration(best)}"`' if math.isfinite(best) else "not needed"
        lines.append(
            f"| {words} | {job.write:.1f} s | {shown} | {goodput(job, best):.1%} | {goodput(job, INFINITE):.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(__file__, "cost.md", "the formula in that file", table))
