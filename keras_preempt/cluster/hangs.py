"""Tells when a job hangs: how far its workers have come, and how long that may take in each phase."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.process import heartbeat
from keras_preempt.process.heartbeat import PHASES, Beat, Phase

AUTO = "auto"

LEAST_HANG = 3.0
"""The least seconds that can be told from a worker that is slow: it is looked at once a second."""

_TIMES = 10.0
_OF_A_STEP = 5 * 60.0  # seconds
_OF_ANYTHING = 30 * 60.0  # seconds
_STEPS = (Phase.TRAIN, Phase.VALIDATION)

_ONE_LOOK = 2.0
"""Seconds that count at most between two looks: this process may have been stopped itself, or its machine."""


class Limits:
    """How long a worker may stay where it is, by phase; learned from all workers and starts of a job.

    `hang` is a number of seconds for every phase; or "auto": ten times the slowest one seen in the phase, and at least
    5 minutes for a step of training or validation once one was seen, 30 minutes for everything else. There is no limit
    then for what a script does after its fits, nor for one that has not imported this package.
    """

    def __init__(self, hang: float | str) -> None:
        self._given = None if isinstance(hang, str) else hang
        self._slowest: dict[Phase, float] = {}

    def saw(self, phase: Phase, seconds: float) -> None:
        """A worker has come on after so many seconds."""
        self._slowest[phase] = max(seconds, self._slowest.get(phase, 0.0))

    def of(self, beat: Beat) -> float:
        """Seconds; infinite if there is no limit."""
        if self._given is not None:
            return self._given
        phase = beat.phase
        if phase is Phase.OUTSIDE or not beat.pid:
            return math.inf
        slowest = self._slowest.get(phase)
        if slowest is None:
            return _OF_ANYTHING
        return max(_TIMES * slowest, _OF_A_STEP if phase in _STEPS else _OF_ANYTHING)

    def why(self, phase: Phase) -> str:
        """Where the limit comes from, in words."""
        slowest = self._slowest.get(phase)
        if self._given is not None:
            return "as given"
        return f"auto: {'none has ended yet' if slowest is None else f'the slowest one took {slowest:.0f} s'}"


@dataclass(frozen=True)
class WorkerPosition:
    """Where a worker stands in a job that hangs.

    Attributes:
        phase: What its main thread was doing, in words.
        step: Training steps done.
        saved: Those in the newest checkpoint that it knew.
        seconds: For how long it has not come on.
    """

    phase: str
    step: int
    saved: int
    seconds: float

    @property
    def words(self) -> str:
        """All of it, for a log."""
        return f"in {self.phase}, at step {self.step}, for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Hang:
    """A job that hangs.

    Attributes:
        workers: The numbers of those that have not come on for too long. If they train one model, the others wait for
            them.
        worker: The one of these that is the cause: the only one, or the one that was stopped. None if that is unknown.
        limit: How long a worker may stay where these are, in seconds.
        at: When it was found, in seconds since 1970.
        positions: Where each worker stands that has not ended.
        reason: Where the limit comes from, in words.
    """

    workers: tuple[int, ...]
    worker: int | None
    limit: float
    at: float
    positions: Mapping[int, WorkerPosition]
    reason: str

    def to_events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields each of `causes`, and the fields of its event "hang"."""
        for index in self.causes:
            position = self.positions[index]
            yield index, {"phase": position.phase, "step": position.step, "seconds": position.seconds}

    @property
    def causes(self) -> tuple[int, ...]:
        """The workers that may be the cause: `worker`, or `workers` if that is unknown."""
        return self.workers if self.worker is None else (self.worker,)


class _Watched:
    def __init__(self, path: Path) -> None:
        # Kept open: whoever cleans the temporary directory does not take it away.
        self.file = heartbeat.prepared(path)
        self.beat = heartbeat.read_beat(self.file)
        self.still = 0.0

    @property
    def place(self) -> tuple[int, int, int]:
        """How far it has come in what all workers do alike. The end of an epoch is no boundary, but one more step."""
        return self.beat.fit, self.beat.entered, self.beat.step

    def look(self, passed: float, limits: Limits) -> None:
        beat = heartbeat.read_beat(self.file)
        if beat == self.beat:
            self.still += passed
        else:
            limits.saw(self.beat.phase, self.still)
            self.beat, self.still = beat, 0.0


class HangDetector:
    """Looks at the workers of one start, for which it makes files in a folder before they start.

    `stopped` returns whether the process of a worker was stopped, by a signal or a debugger.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        limits: Limits,
        stopped: Callable[[int, Beat], bool] = lambda worker, beat: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._stopped, self._clock = limits, stopped, clock
        self._looked = clock()
        self._watched = [_Watched(folder / heartbeat.beat_file(worker)) for worker in range(workers)]

    def close(self) -> None:
        for each in self._watched:
            each.file.close()

    def beat(self, worker: int) -> Beat:
        """What a worker said at the last look."""
        return self._watched[worker].beat

    def steps(self, worker: int) -> int | None:
        """The training steps that a worker has done in the fit in which it is; None if that is not known exactly."""
        beat = heartbeat.read_beat(self._watched[worker].file)
        in_fit = beat.phase not in (Phase.START, Phase.LOOP, Phase.OUTSIDE)
        return beat.step if in_fit and beat.per_boundary <= 1 else None

    def look(self, is_running: Callable[[int], bool]) -> Hang | None:
        """Looks at all workers that run; to be called about once a second. Returns how the job hangs, if it does."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, _ONE_LOOK), now
        running = {i: each for i, each in enumerate(self._watched) if is_running(i)}
        for each in running.values():
            each.look(passed, self._limits)
        # Workers that train one model wait for those that are furthest behind, of which each may still be at work.
        together = {i: each for i, each in running.items() if each.beat.members > 1}
        least = min((each.place for each in together.values()), default=None)
        behind = [i for i, each in together.items() if each.place == least]
        for group in [behind, *([i] for i in running.keys() - together.keys())]:
            if group and all(self._is_over(running[i]) for i in group):
                return self._hang(group, running)
        return None

    def _is_over(self, each: _Watched) -> bool:
        return each.still > self._limits.of(each.beat)

    def _hang(self, group: list[int], running: Mapping[int, _Watched]) -> Hang:
        stopped = [i for i in group if self._stopped(i, running[i].beat)]
        causes = stopped or group
        beat = running[causes[0]].beat
        return Hang(
            tuple(sorted(group)),
            causes[0] if len(causes) == 1 else None,
            self._limits.of(beat),
            time.time(),
            {
                i: WorkerPosition(PHASES[each.beat.phase], each.beat.step, each.beat.saved, each.still)
                for i, each in running.items()
            },
            self._limits.why(beat.phase),
        )
