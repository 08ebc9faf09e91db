"""Starts the job's own command, signals it as the machine will, and records what it does."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from keras_preempt.cli.doctor.processes import Process, chain, look, training_process
from keras_preempt.cli.doctor.reasons import Outcome
from keras_preempt.cli.doctor.surroundings import Grace, is_ignored
from keras_preempt.cli.doctor.watched import Watched
from keras_preempt.cluster import LocalCluster
from keras_preempt.cluster.leash import descendants
from keras_preempt.cluster.worker import LEFT_BEHIND
from keras_preempt.process.environment import DRILL_DIRECTORY, STATUS_DIR

# Seconds between two looks at a directory, which sends no word; a bucket is looked at less often.
_LOOK, _LOOK_AT_A_BUCKET = 0.25, 1.0
_PID_LOOK = 0.1  # seconds between two looks at which workers have ended
_IGNORED_FOR = 1.0  # seconds; a script may correct it in its first line, which takes a moment
_LAST_LINES = 15
_SETTLED = 0.2  # seconds; less than the keeper waits
_CLOCK = 0.1  # seconds by which the clock of a file and ours may differ on one machine

# Started by this, a command inherits an ignored SIGTERM as this process did; the keeper would reset it.
_IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Trial:
    """One start of a command.

    The signal goes to the process that was started, as kubelet, systemd or slurmstepd send it; nothing passes it on.
    Everything that the command has started is ended with the trial.

    Args:
        command: The job's own command.
        workers: How many to start here. One of several gets the signal; all have to save.
        root: Where the directories of the script's callbacks are put.
        grace: The grace period.
        patience: Seconds for training to begin.
        codes: Exit statuses that ask for a restart.
        log: Called with the number of a worker and a line of its output.
        variables: More variables for the command.
        as_pid_1: Whether the job's process is process 1 of a container.
        sends: Whether this worker of a cluster gets the signal; the others then hear of it.
    """

    command: Sequence[str]
    workers: int
    root: str
    grace: Grace
    patience: float
    codes: Collection[int]
    log: Callable[[int, str], None]
    variables: Mapping[str, str | None] = field(default_factory=dict)
    as_pid_1: bool = False
    sends: bool = True
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES), init=False)
    _left: list[str] = field(default_factory=list, init=False)
    _ignoring: dict[int, Process] = field(default_factory=dict, init=False)
    _ignoring_since: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._watched = Watched(self.root)

    def run(self) -> Outcome:
        """Runs the command to its end, and returns what was seen of it."""
        command = list(self.command)
        if is_ignored():
            command = [sys.executable, "-I", "-S", "-c", _IGNORING, *command]
        cluster = LocalCluster(
            self.workers,
            command,
            # Without a status directory the keeper knows no training process to pass the signal to.
            env={STATUS_DIR: None, DRILL_DIRECTORY: self.root, **self.variables},
            log=self._line,
            on_exit=lambda index: self._ended.set(),
        )
        with cluster:
            began = time.monotonic()
            trains = self._wait_for_training(cluster)
            outcome = Outcome(
                command=tuple(self.command),
                grace=self.grace,
                codes=tuple(self.codes),
                patience=self.patience,
                began_after=time.monotonic() - began,
                trains=trains,
                as_pid_1=self.as_pid_1,
            )
            if trains:
                self._end(cluster, outcome)
        self._watched.look()
        outcome.watched = self._watched
        outcome.exits = {exit.index: exit.code for exit in cluster.exits if not exit.by_launcher}
        outcome.left = tuple(self._left)
        outcome.last_lines = tuple(self._last)
        return outcome

    def _wait_for_training(self, cluster: LocalCluster) -> bool:
        """Waits until every worker has done a step; False if they end before, or it takes too long."""
        until = time.monotonic() + self.patience
        pause = _LOOK if "://" not in self.root else _LOOK_AT_A_BUCKET
        while time.monotonic() < until:
            ended = self._ended.wait(pause)
            self._note_ignoring(cluster)
            self._watched.look()
            if ended:
                return False
            if self._watched.trains():
                return not self._watched.has("finish")
        return False

    def _note_ignoring(self, cluster: LocalCluster) -> None:
        """Records Python processes that ignore SIGTERM, which fit corrects only while it lasts."""
        for started in cluster.pids:
            for pid in (started, *(descendants(started) or ())):
                process = look(pid)
                if process is None or not process.ignored or not process.is_python:
                    self._ignoring_since.pop(pid, None)
                elif (
                    time.monotonic() >= self._ignoring_since.setdefault(pid, time.monotonic()) + _IGNORED_FOR
                ):
                    self._ignoring[pid] = process

    def _end(self, cluster: LocalCluster, outcome: Outcome) -> None:
        index = self.workers - 1
        started = cluster.pids[index]
        named = self._watched.processes()
        for member in sorted(named, reverse=True):
            if trains := training_process(named[member], started):
                break
        else:
            trains = 0
        outcome.chain = tuple(chain(started, trains))
        outcome.found_training = bool(trains) and outcome.chain[-1:][0].pid == trains
        outcome.ever_ignored = self._ignoring.get(trains)  # Not a helper process, which may ignore it.
        outcome.signalled_at = time.time()
        sent = time.monotonic()
        if self.sends:
            if self.as_pid_1 and outcome.chain and not outcome.chain[0].caught:
                outcome.dropped = True  # As the kernel does for process 1.
                return
            cluster.signal_command(index, signal.SIGTERM)
        until = sent + self.grace.seconds
        while time.monotonic() < until and len(cluster.exits) < self.workers:
            self._ended.wait(_PID_LOOK)
            self._ended.clear()
        ends = [exit.at for exit in cluster.exits]
        outcome.in_time = len(ends) == self.workers and max(ends) <= until
        outcome.seconds = max(ends, default=time.monotonic()) - sent
        # The keeper ends what is left half a second after the command; a save after that had its help.
        over = outcome.signalled_at + outcome.seconds + _SETTLED
        self._watched.look()
        outcome.heard = self._watched.has("notice", outcome.signalled_at - _CLOCK, over)
        outcome.saved = self._watched.checkpoints(outcome.signalled_at - _CLOCK, over)
        if outcome.in_time:
            with contextlib.suppress(TimeoutError):
                cluster.wait(timeout=self.grace.seconds)  # For the line that names what was left behind.

    def _line(self, index: int, line: str) -> None:
        if line.startswith(LEFT_BEHIND):
            self._left.append(line.removeprefix(LEFT_BEHIND))
        else:
            self._last.append(line)
        self.log(index, line)
