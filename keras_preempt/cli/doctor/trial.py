"""Starts the job's own command, signals it as the machine will, and records what it does."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.cli.doctor.processes import Process, chain, look, training_process
from keras_preempt.cli.doctor.surroundings import is_ignored
from keras_preempt.cli.doctor.watched import LastLines, Loops, Watched
from keras_preempt.cluster import LocalCluster
from keras_preempt.cluster.keeper import descendants
from keras_preempt.cluster.worker import LEFT_BEHIND
from keras_preempt.notices.cloud import Grace
from keras_preempt.process.environment import DRILL_DIRECTORY, STATUS_DIR

# Seconds between two looks at a directory, which notifies nobody; a bucket is looked at less often.
_LOOK, _LOOK_AT_A_BUCKET = 0.25, 1.0
_PID_LOOK = 0.1  # seconds between two looks at which workers have ended
_IGNORED_FOR = 1.0  # seconds; a script may correct it in its first line, which takes a moment
_SETTLED = 0.2  # seconds; less than the keeper waits
_CLOCK = 0.1  # seconds by which the clock of a file and ours may differ on one machine

# Started by this, a command inherits an ignored SIGTERM as this process did; the keeper would reset it.
_IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Trial:
    """One start of a command, and what was seen of it.

    The signal goes to the process that was started, as kubelet, systemd or slurmstepd send it; nothing passes it on.
    Everything that the command has started is ended with the trial.
    """

    command: Sequence[str]  # The job's own.
    workers: int  # How many to start here. One of several gets the signal; all have to save.
    root: str  # Where the directories of the script's callbacks are put.
    grace: Grace
    patience: float  # Seconds for training to begin.
    codes: Collection[int]  # Exit statuses that ask for a restart.
    log: Callable[[int, str], None]  # Called with the number of a worker and a line of its output.
    variables: Mapping[str, str | None] = field(default_factory=dict)
    as_pid_1: bool = False  # Whether the command is to be process 1 of a container.
    sends: bool = True  # Whether this worker of a cluster gets the signal; the others then hear of it.
    uses_handler: bool = False  # Whether it may be a custom loop with a `PreemptionCheckpointHandler`.

    watched: Watched = field(init=False)
    began_after: float = field(default=0.0, init=False)  # Seconds until training began, or the wait was over.
    trains: bool = field(default=False, init=False)  # Training began and was not over yet.
    dropped: bool = field(default=False, init=False)  # The kernel would drop the signal to process 1.
    # From the one that was started to the one that trains.
    chain: list[Process] = field(default_factory=list, init=False)
    found_training: bool = field(default=False, init=False)  # The last of the chain is the one that trains.
    in_time: bool = field(default=False, init=False)  # All workers ended within the grace.
    seconds: float = field(default=0.0, init=False)  # From the signal to the end of the last worker.
    heard: bool = field(default=False, init=False)  # Training heard of the signal in that time.
    saved: int | None = field(default=None, init=False)  # The latest step that was committed in that time.
    # Codes of workers that ended by themselves.
    exits: dict[int, int] = field(default_factory=dict, init=False)
    left: list[str] = field(default_factory=list, init=False)  # Processes that were left behind.
    last_lines: LastLines = field(default_factory=LastLines, init=False)
    ever_ignored: Process | None = field(default=None, init=False)  # A Python process that ignored SIGTERM.
    _loops: Loops | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _ignoring: dict[int, Process] = field(default_factory=dict, init=False)
    _ignoring_since: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.watched = Watched(self.root)

    @property
    def good_status(self) -> bool:
        return bool(self.exits) and all(code in self.codes for code in self.exits.values())

    @property
    def is_loop(self) -> bool:
        """Whether a custom loop was tried: its script uses a handler, and no fit has begun."""
        return self.uses_handler and not self.watched.has("start")

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            command = list(self.command)
            if self.uses_handler:
                folder = stack.enter_context(scratch_directory("doctor"))
                self._loops = Loops(folder, self.workers)
                # For the command alone: the keeper would pass the signal on to the process that says it listens.
                command = ["env", f"{STATUS_DIR}={folder}", *command]
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
                self.trains = self._wait_for_training(cluster)
                self.began_after = time.monotonic() - began
                if self.trains:
                    self._end(cluster)
            self.watched.look()
            self.exits = {exit.index: exit.code for exit in cluster.exits if not exit.by_launcher}

    def _wait_for_training(self, cluster: LocalCluster) -> bool:
        """Waits until every worker has done a step; False if they end before, or it takes too long."""
        until = time.monotonic() + self.patience
        pause = _LOOK if open_store(self.root).is_local else _LOOK_AT_A_BUCKET
        while time.monotonic() < until:
            ended = self._ended.wait(pause)
            self._note_ignoring(cluster)
            self.watched.look()
            if ended:
                return False
            if self.watched.trains():
                return not self.watched.has("finish")
            if self._loops is not None and self.is_loop and self._loops.trains():
                return True
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

    def _end(self, cluster: LocalCluster) -> None:
        index = self.workers - 1
        started = cluster.pids[index]
        source = self._loops if self._loops is not None and self.is_loop else self.watched
        named = sorted(source.processes().items(), reverse=True)
        trains = next(filter(None, (training_process(process, started) for _, process in named)), 0)
        self.chain = chain(started, trains)
        self.found_training = bool(trains) and self.chain[-1:][0].pid == trains
        self.ever_ignored = self._ignoring.get(trains)  # Not a helper process, which may ignore it.
        signalled_at = time.time()
        sent = time.monotonic()
        if self.sends:
            if self.as_pid_1 and self.chain and not self.chain[0].caught:
                self.dropped = True  # As the kernel does for process 1.
                return
            cluster.signal_command(index, signal.SIGTERM)
        until = sent + self.grace.seconds
        while time.monotonic() < until and len(cluster.exits) < self.workers:
            self._ended.wait(_PID_LOOK)
            self._ended.clear()
        ends = [exit.at for exit in cluster.exits]
        self.in_time = len(ends) == self.workers and max(ends) <= until
        self.seconds = max(ends, default=time.monotonic()) - sent
        # The keeper ends what is left half a second after the command; a save after that had its help.
        over = signalled_at + self.seconds + _SETTLED
        self.watched.look()
        self.heard = self.watched.has("notice", signalled_at - _CLOCK, over)
        self.saved = self.watched.saved_step(signalled_at - _CLOCK, over)
        if self.in_time:
            with contextlib.suppress(TimeoutError):
                cluster.wait(timeout=self.grace.seconds)  # For the line that names what was left behind.

    def _line(self, index: int, line: str) -> None:
        if line.startswith(LEFT_BEHIND):
            self.left.append(line.removeprefix(LEFT_BEHIND))
        else:
            self.last_lines.add(line)
        self.log(index, line)
