"""What preemptions cost a training job, and which `save_every` is best: the formula of docs/cost.md and docs/cost.js.

`python docs/cost.py` writes the table of examples on docs/cost.md; `--check` compares it. Sources: J. W. Young, "A
first order approximation to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A higher order estimate of
the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006). Llama 3's figures are
those of "The Llama 3 Herd of Models" (2024), section 3.3: 419 unexpected interruptions in 54 days (table 5), 8 GPUs a
machine, a storage of 2 TB/s.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

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
        together: Whether a worker reads only its share at a restart, and gets what else it needs over the network.
        memory_every: Seconds of training between two saves in memory; 0 for none.
        memory_restore: Seconds to restore from memory.
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
    together: bool = False
    memory_every: float = 0.0
    memory_restore: float = 2.0

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
        """Seconds without training after an interruption, if the workers read the committed checkpoint."""
        readers = 1 if self.together else self.workers
        return self.restart + self.state * readers / (self.bandwidth * (1 if self.shared else self.workers))

    @property
    def away_from_memory(self) -> float:
        return self.restart + self.memory_restore

    @property
    def copy(self) -> float:
        """Seconds for which training stops while a worker copies its share in memory."""
        return self.state / (self.workers * self.memory)

    @property
    def pause(self) -> float:
        """Seconds of training that a save in the background costs: the copy of the worker's share, and the slowdown."""
        return self.copy + self.slowdown * self.write

    @property
    def in_memory(self) -> bool:
        """Whether there are saves in memory; that of the only machine is lost with it."""
        return self.memory_every > 0 and self.workers > 1


def fallback(job: Job) -> float:
    """Returns the share of the interruptions without a notice that no save in memory survives; 0 to 1.

    A machine's state is in its own memory and in that of the next one. So it is gone if either neighbour of a machine
    that is lost is lost as well before all have a new save in memory: the restart, which has to be begun again if
    any machine is lost in it, and the first interval after it.
    """
    if not job.in_memory or job.rate == 0:
        return 1.0
    exposed = math.expm1(job.rate * (job.away_from_memory + job.memory_every + job.copy)) / job.rate
    neighbours = min(2, job.workers - 1) * job.rate / job.workers
    # Each machine that is lost, also those in the restart, has neighbours.
    return -math.expm1(-neighbours * exposed * math.exp(job.rate * job.away_from_memory))


def best_interval(job: Job) -> float:
    """Returns the seconds of training between two saves that lose the least: Daly's estimate.

    It is at least the time to write a checkpoint, since saves follow one another, and infinite where every interruption
    comes with a notice. With saves in memory only the interruptions count that none of them survives.
    """
    return max(_daly(job.pause, job.rate * (1 - job.noticed) * fallback(job)), job.write)


def best_memory_interval(job: Job) -> float:
    """Returns the seconds of training between two saves in memory that lose the least: Daly's estimate again."""
    return _daly(job.copy, job.rate * (1 - job.noticed))


def _daly(pause: float, rate: float) -> float:
    """Daly's estimate of the best time between two saves that cost a pause each; its first term is Young's."""
    if rate == 0:
        return INFINITE
    mean = 1 / rate
    part = pause / (2 * mean)
    return mean if part >= 1 else math.sqrt(2 * pause * mean) * (1 + math.sqrt(part) / 3 + part / 9) - pause


def goodput(job: Job, interval: float) -> float:
    """Returns the share of the wall time in which steps are trained that are kept.

    Interruptions are independent of each other (a Poisson process), so a job is a row of lives of random length. For a
    life of rate r that saves after every `interval` of training, with T = interval + pause, the mean training kept is

        interval * exp(-r * write) / (exp(r * T) - 1)          if it ends without a notice,
        (1 - exp(-r * interval)) / (1 - exp(-r * T)) / r       if it ends with one,

    and the mean wall time is 1 / r, and the save at a notice, and (exp(r * away) - 1) / r for the restart, in which a
    machine can be taken away as well. `kept` has the means with saves in memory.

    Args:
        job: The job.
        interval: Seconds of training between two saves in the background; infinite for none.
    """
    if job.rate == 0:
        return _share(interval, job.pause) * _memory_share(job)
    after_notice, after_kill = kept(job, interval)
    from_memory = (1 - job.noticed) * (1 - fallback(job))
    restart = (1 - from_memory) * math.expm1(job.rate * job.away) / job.rate
    restart += from_memory * math.expm1(job.rate * job.away_from_memory) / job.rate
    wall = 1 / job.rate + job.noticed * job.write + restart
    return max(0.0, job.noticed * after_notice + (1 - job.noticed) * after_kill) / wall


def kept(job: Job, interval: float) -> tuple[float, float]:
    """Returns the mean seconds of training that a life leaves behind: with a notice at its end, and without one.

    The difference is what is trained again after an interruption without a notice. With saves in memory that is the
    training since the last of them; where none survives, it is that since the last committed checkpoint, which may be
    several lives ago.
    """
    rate, period = job.rate, interval + job.pause
    if math.isfinite(interval):
        trained = math.expm1(-rate * interval) / math.expm1(-rate * period) / rate
        after_kill = interval * math.exp(-rate * job.write) / math.expm1(rate * period)
    else:
        trained, after_kill = 1 / rate, 0.0
    if not job.in_memory:
        return trained, after_kill
    lost = fallback(job)
    trained *= _memory_share(job)
    in_memory = job.memory_every / math.expm1(
        rate * (job.memory_every + job.copy) / _share(interval, job.pause)
    )
    # Since the last commit by `save_every`, of which each succeeds if its life lasts until then; notices and other
    # losses cut that short.
    written = math.exp(-rate * job.write)
    age = interval * (2 - written) / (2 * written) + job.write
    age = 1 / (1 / age + (job.noticed + (1 - job.noticed) * lost) / trained)
    return trained, (1 - lost) * in_memory + lost * (trained - age)


def _share(interval: float, pause: float) -> float:
    """The share of the time in which training does not stand still for saves."""
    return interval / (interval + pause) if math.isfinite(interval) else 1.0


def _memory_share(job: Job) -> float:
    return _share(job.memory_every, job.copy) if job.in_memory else 1.0


def duration(seconds: float) -> str:
    """Returns a time as `save_every` takes it, in two digits or whole minutes."""
    if not math.isfinite(seconds):
        return "none"
    if seconds < 90:
        return f"{max(round(seconds), 1)}s"
    return f"{round(seconds / 60)}min" if seconds < 5400 else f"{seconds / 3600:.1f}h"


LLAMA_3 = Job(
    workers=2048,  # 16,384 GPUs
    state=4.86e12,  # 405 billion parameters: weights and Adam's two moments in 4 bytes each
    bandwidth=2e12,
    shared=True,
    speed=0.1,
    interruptions=419 / 54 / 2048,
    noticed=0.0,
    together=True,
)
"""The restart is not in the paper."""

EXAMPLES = {
    "one machine, a small model": Job(workers=1, state=0.5e9, bandwidth=0.2e9, interruptions=2, speed=10),
    "the values above": Job(),
    "the same, every interruption with a notice": Job(noticed=1.0),
    "the same, none with a notice": Job(noticed=0.0),
    "the same, with saves in memory every minute": Job(noticed=0.0, memory_every=60.0),
    "the same, on one shared disk": Job(shared=True),
    "64 workers, 100 GB": Job(workers=64, state=100e9),
}

MACHINES = (16, 256, 2048, 16384)
SLOWER = 25e9  # bytes a second


def scaled(machines: int) -> Job:
    """Returns Llama 3's job on another number of machines: each has the same state, and fails as often."""
    return replace(LLAMA_3, workers=machines, state=LLAMA_3.state / LLAMA_3.workers * machines)


def table() -> str:
    """Returns the examples, and Llama 3's failures on other numbers of machines, as tables in Markdown."""
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
    lines += [
        "",
        "Machines that fail as often as those of Llama 3 and have 2.4 GB of state each, on storage of 2 TB/s (theirs)",
        "and of 25 GB/s. Each cell has the goodput, and the best `save_every` or `memory_every`:",
        "",
        "| machines | a failure every | 2 TB/s | with saves in memory | 25 GB/s | with saves in memory |",
        "|---|---|---|---|---|---|",
    ]
    for machines in MACHINES:
        job = scaled(machines)
        cells = []
        for each in (job, replace(job, bandwidth=SLOWER)):
            best = best_interval(each)
            memory = replace(each, memory_every=best_memory_interval(each))
            cells.append(f'{goodput(each, best):.1%}, `"{duration(best)}"`')
            cells.append(f'{goodput(memory, best_interval(memory)):.1%}, `"{duration(memory.memory_every)}"`')
        lines.append(f"| {machines:,} | {1 / job.rate / 3600:,.1f} h | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(__file__, "cost.md", "the formula in that file", table))
