"""What a storm consists of, drawn from its seed. Pure."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, replace

TERM, KILL, STOP, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
INT, HUP = signal.SIGINT, signal.SIGHUP

LAUNCHER = -1
EVERYONE = -2

MOMENTS = {
    "start-up": None,
    "restore": r"AT train_begin",
    "training": r"AT batch ",
    "a step": r"AT done ",
    "validation": r"AT test_batch ",
    "the end of an epoch": r"AT epoch_end ",
    "the end of the training": r"AT epoch_end 2",
    "saving": r"AT saving",
}
"""By name, the line of a worker that begins it; None: the start of its process."""

_WEIGHTS = {
    "start-up": 2,
    "restore": 3,
    "training": 6,
    "a step": 2,
    "validation": 3,
    "the end of an epoch": 1,
    "the end of the training": 1,
}

#: Signals, each with the seconds after the one before it, as (lowest, highest); how often it is drawn.
_KINDS: dict[str, tuple[list[tuple[signal.Signals, float, float]], int]] = {
    "SIGTERM": ([(TERM, 0, 0)], 6),
    "SIGTERM twice": ([(TERM, 0, 0), (TERM, 0, 1.5)], 3),
    "SIGTERM, then SIGKILL": ([(TERM, 0, 0), (KILL, 0, 2)], 3),
    "SIGKILL": ([(KILL, 0, 0)], 3),
    "a pause": ([(STOP, 0, 0), (CONT, 0.1, 3)], 2),
    "SIGTERM in a pause": ([(STOP, 0, 0), (TERM, 0, 1), (CONT, 0.1, 2)], 1),
    "SIGINT": ([(INT, 0, 0)], 1),
    "SIGINT, then SIGTERM": ([(INT, 0, 0), (TERM, 0, 1)], 1),
    "SIGHUP": ([(HUP, 0, 0)], 2),
}


@dataclass(frozen=True)
class Blow:
    """Signals, each with the seconds after the one before, to a worker, `EVERYONE` or the `LAUNCHER`.

    They come `delay` seconds after a moment of `MOMENTS`: its occurrence of the number `count` since the blow before.
    """

    kind: str
    moment: str
    count: int
    delay: float
    target: int
    signals: tuple[tuple[signal.Signals, float], ...]

    def __str__(self) -> str:
        who = {LAUNCHER: "the launcher", EVERYONE: "all workers"}.get(self.target, f"w{self.target}")
        sent = ", ".join(f"{number.name} after {gap:.2f} s" for number, gap in self.signals)
        return f"{self.kind} to {who} {self.delay:.2f} s after {self.moment} ({self.count}): {sent}"


@dataclass(frozen=True)
class Storm:
    """One job, its options that change no result, and what happens to it unless training is over before."""

    seed: int
    workers: int
    launched: bool
    args: tuple[str, ...]
    blows: tuple[Blow, ...]
    in_memory: bool = False  # Whether it saves in memory, which some of the killed workers' machines lose.
    data: tuple[str, ...] = ()  # Options by which it trains on other data.

    def __str__(self) -> str:
        how = "under the launcher" if self.launched else "without a launcher"
        lines = [f"storm {self.seed}: {self.workers} workers {how}, {' '.join([*self.args, *self.data])}"]
        return "\n  ".join([*lines, *map(str, self.blows)])


def storm(seed: int, *, workers: int | None = None, launched: bool | None = None) -> Storm:
    """Draws a storm, and what is not given: how many workers, and whether `keras-preempt run` starts them."""
    rng = random.Random(seed)
    drawn_workers, drawn_launched = rng.choice([1, 1, 2, 2, 2, 3, 4]), rng.random() < 0.4
    workers = drawn_workers if workers is None else workers
    launched = drawn_launched if launched is None else launched
    save_every = rng.choice([None, "3", "5", "epoch"])
    args = ("--slow", "0.03") if save_every is None else ("--slow", "0.03", "--save-every", save_every)
    blows = tuple(_blow(rng, workers, launched) for _ in range(rng.randint(2, 5)))
    return Storm(seed, workers, launched, args, blows)


def storm_in_saves(seed: int, *, workers: int | None = None) -> Storm:
    """Draws a storm that hits only where a part is written and its manifest is not. Others have no such moment."""
    drawn = storm(seed, workers=workers)
    rng = random.Random(f"saves {seed}")
    blows = tuple(
        replace(blow, moment="saving", count=rng.randrange(2), delay=rng.uniform(0, 0.15))
        for blow in drawn.blows
    )
    args = ("--slow", "0.03", "--mark-saves", "--save-every", rng.choice(["2", "3", "epoch"]))
    return replace(drawn, args=args, blows=blows)


def storm_in_memory(seed: int, *, workers: int | None = None) -> Storm:
    """Draws a storm on a job that saves in memory; half of the signals are replaced by SIGKILL to one worker."""
    drawn = storm(seed, workers=workers)
    rng = random.Random(f"memory {seed}")
    blows = tuple(
        replace(blow, kind="SIGKILL", target=rng.randrange(drawn.workers), signals=((KILL, 0.0),))
        if rng.random() < 0.5
        else blow
        for blow in drawn.blows
    )
    return replace(drawn, args=("--slow", "0.05", *drawn.args[2:]), blows=blows, in_memory=True)


def _blow(rng: random.Random, workers: int, launched: bool) -> Blow:
    kind = rng.choices(list(_KINDS), [weight for _, weight in _KINDS.values()])[0]
    moment = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    count = rng.randrange(8) if moment in ("training", "a step", "validation") else 0
    delay = rng.uniform(0, 4.0 if moment == "start-up" else 0.6 if moment == "restore" else 0.08)
    targets = [*range(workers), EVERYONE, *([LAUNCHER] * workers if launched else [])]
    signals = tuple((number, rng.uniform(low, high)) for number, low, high in _KINDS[kind][0])
    return Blow(kind, moment, count, delay, rng.choice(targets), signals)
