"""Runs a cluster, and restarts it until its job is done."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.cluster.compile_cache import compile_cache
from keras_preempt.cluster.ending_hangs import HangWatch
from keras_preempt.cluster.hangs import Limits
from keras_preempt.cluster.local import LocalCluster, default_prefix
from keras_preempt.cluster.outcome import (
    KILLED_BY_TERM,
    Incarnation,
    Outcome,
    RestartPolicy,
    SupervisorReport,
    Verdict,
    as_reported,
    exit_status,
    judge,
)
from keras_preempt.cluster.standby import ImportNotes, Standbys
from keras_preempt.cluster.status import (
    incarnation_folder,
    overdue,
    read_cloud,
    read_in_memory,
    read_listening,
    read_statuses,
    read_unreported,
    read_unsaid,
    record_exits,
    recorded_steps,
)
from keras_preempt.process import this_process
from keras_preempt.process.environment import END_TIME, INCARNATION, JAX_CACHE, STATUS_DIR
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, EXIT_NOT_SAVED

_ANSWERED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # As nohup does; those stay ignored.
_PORT_ATTEMPTS = 3
_ENDED = {Outcome.PREEMPTED: "preempted", Outcome.HUNG: "ended because it hung"}
_TIMED_OUT = 124  # as timeout(1) does


class Supervisor:
    """Runs a command in a local cluster until it finishes, fails, or makes no more progress.

    While ``run`` is in progress, SIGTERM and SIGINT to this process are passed on to all workers and end the job with
    the running incarnation; a second SIGINT kills the workers. SIGHUP, which says that the terminal is gone, is passed
    on as SIGTERM, for which workers listen. So are SIGUSR1 and SIGUSR2, with which a scheduler may announce the end
    (Slurm's ``--signal=USR1@300``), except to workers that listen for them. Where one of these three was ignored before
    (nohup), it stays ignored. ``run`` has to be called from the main thread, as Python requires for signal handlers.

    Args:
        workers: Number of processes.
        command: Program and arguments.
        policy: The rules for restarts.
        say: Called with one line about what the supervisor sees and does.
        log: As in ``LocalCluster``.
        prefix: As in ``LocalCluster``.
        environment: Returns the variables to set for an incarnation, by its number.
        expected: Called with an incarnation that ended by a failure; returns in words why that was expected, and the
            job is then restarted without counting the failure. None: it was not expected.
        cwd: As in ``LocalCluster``.
        stopping: Called once, from a signal handler, when the job is told to stop.
        standby: For how many starts to have processes ready that have imported what the script imports: 0 or 1, or
            more if `notes` has the imports of an earlier job, when they are prepared before this one begins.
        notes: Where to note the imports; None: only where `standby` needs them.
    """

    def __init__(
        self,
        workers: int,
        command: Sequence[str],
        *,
        policy: RestartPolicy | None = None,
        say: Callable[[str], None] = lambda line: None,
        log: Callable[[int, str], None] | TextIO | None = None,
        prefix: Callable[[int], str] = default_prefix,
        environment: Callable[[int], Mapping[str, str | None]] = lambda incarnation: {},
        expected: Callable[[Incarnation], str | None] = lambda incarnation: None,
        cwd: Path | None = None,
        stopping: Callable[[], None] = lambda: None,
        standby: int = 0,
        notes: ImportNotes | None = None,
    ):
        self._workers = workers
        self._command = command
        self._policy = policy or RestartPolicy()
        self._say = say
        self._log = log
        self._prefix = prefix
        self._environment = environment
        self._expected = expected
        self._cwd = cwd
        self._stopping = stopping
        unheard_grace = self._policy.unheard_grace
        self._standbys: Standbys | None = None
        if standby or notes is not None:
            self._standbys = Standbys(command, say, unheard_grace, cwd, notes or ImportNotes(), standby)
        self._cluster: LocalCluster | None = None  # Once all its workers have started.
        self._begun: LocalCluster | None = None
        self._stop: signal.Signals | None = None
        self._pending: collections.deque[signal.Signals] = collections.deque()
        self._interrupts = 0
        limit = self._policy.time_limit
        spent = time.time() - this_process.started_at()
        self._ends_at = math.inf if limit is None else time.monotonic() + limit - spent
        self._limits = None if self._policy.hang is None else Limits(self._policy.hang)

    def run(self, *, last: bool = False) -> SupervisorReport:
        """Runs the job to its end.

        Args:
            last: Whether this process exits right afterwards. The signals are then ignored to the end, so that a second
                one cannot kill this process and replace the status of the job.

        Raises:
            OSError: A process cannot be started.
            ValueError: This is not the main thread, or ``LocalCluster`` refuses the arguments.
        """
        previous = {number: signal.getsignal(number) for number in _ANSWERED}
        answered = [n for n in _ANSWERED if not (n in _MAY_BE_IGNORED and previous[n] is signal.SIG_IGN)]
        for number in answered:
            signal.signal(number, self._on_signal)
        try:
            with scratch_directory("run") as root:
                report = self._run(root)
                if report.exit_code in (0, EXIT_INTERRUPTED):  # After anything else it may be started again.
                    machine_memory.remove_left_by(root)
                return report
        finally:
            if self._standbys is not None:
                self._standbys.close()
            for number in answered:
                # A handler that was not set from Python reads as None and cannot be put back from here.
                signal.signal(number, signal.SIG_IGN if last else previous[number] or signal.SIG_DFL)

    def send(self, index: int, number: int) -> int:
        """Sends a signal to the command of a worker as a machine would. May be called from any thread.

        SIGKILL ends everything that the command has started, as the end of a machine does.

        Returns:
            The id of the process of the command; 0 if it is gone already.
        """
        cluster = self._begun  # A worker that was a standby may train before the next one has started.
        if cluster is None:
            return 0
        send = cluster.signal if number == signal.SIGKILL else cluster.signal_command
        return cluster.pids[index] if send(index, number) else 0

    @property
    def standbys(self) -> int:
        """How many standbys are ready. May be asked from any thread."""
        return 0 if self._standbys is None else self._standbys.ready

    def _run(self, root: Path) -> SupervisorReport:
        done: list[Incarnation] = []
        best: dict[str, int] = {}  # Steps by the directory of the fit, of which a script may have several.
        stalled, failures, port_retries = 0, 0, 0
        expected: list[int] = []
        while True:
            incarnation = self._run_once(len(done), root)
            done.append(incarnation)
            outcome = incarnation.verdict.outcome
            where = f", saved at step {incarnation.safe_step}" if incarnation.saved else ""
            for note in incarnation.verdict.notes:
                self._say(note)
            if outcome is Outcome.FINISHED:
                if not incarnation.silent:
                    return SupervisorReport(tuple(done), 0, "finished", tuple(expected))
                for index in incarnation.silent:  # Behind a shell: the shell has ended well.
                    self._say(f"w{index} ended with 0, but its training process was killed")
            if self._stop is not None:
                code = self._stopped_code(incarnation, max(best.values(), default=0), self._stop)
                return SupervisorReport(tuple(done), code, f"stopped by {self._stop.name}{where}")
            if incarnation.out_of_time or self._left() <= 0:
                code = self._stopped_code(incarnation, max(best.values(), default=0), signal.SIGTERM)
                return SupervisorReport(tuple(done), code, f"out of time{where}", tuple(expected))
            if outcome not in (Outcome.PREEMPTED, Outcome.HUNG):
                why = self._expected(incarnation)
                if why is not None:
                    expected.append(incarnation.number)
                    self._say(f"incarnation {incarnation.number}: {why}: starting again")
                    continue
                if outcome is Outcome.INTERRUPTED:
                    return SupervisorReport(tuple(done), EXIT_INTERRUPTED, f"interrupted{where}")
                if incarnation.address_in_use and port_retries < _PORT_ATTEMPTS - 1:
                    port_retries += 1
                    self._say(
                        "a port was taken before its worker could use it: starting again with other ports"
                    )
                    continue
                if incarnation.lost or (incarnation.verdict.lost and best):
                    self._say("a worker was lost without a notice, and there is a checkpoint to go on from")
                else:
                    failures += 1
                if failures > self._policy.max_failures:
                    return SupervisorReport(tuple(done), _failure_code(incarnation), "failed")
            step, fit = incarnation.safe_step, incarnation.directory
            progress = step > best.get(fit, 0)
            if progress:
                best[fit] = step
            stalled = 0 if progress else stalled + 1
            if stalled > self._policy.max_restarts_without_progress:
                reason = f"gave up after {stalled} incarnations without progress"
                return SupervisorReport(tuple(done), 1, reason)
            ended = _ENDED.get(outcome, "ended by a failure")
            saved = f"saved up to step {step}" if progress else f"no progress, {stalled} in a row"
            self._say(f"incarnation {incarnation.number} was {ended} ({saved}): starting again")

    def _run_once(self, number: int, root: Path) -> Incarnation:
        status_dir = root / incarnation_folder(number)
        status_dir.mkdir()
        env = {
            INCARNATION: str(number),
            STATUS_DIR: str(status_dir),
            **read_cloud(root),
            **self._end_time(),
            **self._environment(number),
        }
        policy = self._policy
        cluster = LocalCluster(
            self._workers,
            self._command,
            env=env,
            worker_env=_compiled_programs(root, self._workers, env),
            log=self._log,
            prefix=self._prefix,
            unheard_grace=policy.unheard_grace,
            cwd=self._cwd,
            ahead=self._standbys,
        )
        if self._standbys is not None and number == 0:
            self._standbys.prepare(root, cluster, lambda: self._stop is not None)
        started_at, timed_out, told, stuck = time.monotonic(), False, False, dict[int, int]()
        watch = None if self._limits is None else HangWatch(status_dir, cluster, self._limits, self._say)

        def look() -> None:
            nonlocal timed_out, told
            if watch is not None:
                watch.look(policy.failure_grace)
            if self._standbys is not None and self._stop is None:
                self._standbys.look(root, number, cluster)
            left = self._left()
            if left <= 0 and not told:
                told = True
                self._say("the time limit is over, and there are workers that still run: ending them")
                cluster.signal_all(signal.SIGTERM)
            if left <= -policy.failure_grace and not timed_out:
                timed_out = True
                cluster.kill_all()
            limit = math.inf if policy.said_grace is None else policy.said_grace
            for index, status in overdue(status_dir, self._workers, limit).items():
                if index not in stuck and cluster.is_running(index):
                    stuck[index] = status
                    self._say(
                        f"w{index} has said that it exits with status {status}, and has not ended within "
                        f"{limit:g} s since. Ending it."
                    )
                    cluster.kill(index)

        with contextlib.ExitStack() as ending:
            if watch is not None:
                ending.callback(watch.close)
            self._begun = cluster
            ending.enter_context(cluster)
            self._cluster = cluster
            self._deliver()
            try:
                cluster.wait(
                    policy.incarnation_timeout,
                    failure_grace=policy.failure_grace,
                    restart_codes=policy.restart_codes,
                    look=look,
                )
            except TimeoutError as error:
                timed_out = True
                self._say(f"{error} Ending it.")
                cluster.kill_all(policy.failure_grace)
            finally:
                self._cluster = self._begun = None
        statuses = read_statuses(status_dir, self._workers)
        listening = read_listening(status_dir, self._workers)
        wrapped = [index for index, pid in listening.items() if pid != cluster.pids[index]]
        exits = as_reported(cluster.exits, statuses, wrapped)
        hang = None if watch is None else watch.found
        counted = {} if watch is None else watch.steps

        def steps(member: int) -> int | None:
            recorded = recorded_steps(env, number, member)
            return counted.get(member) if recorded is None else recorded

        record_exits(status_dir, exits, self._say, steps, hang)
        verdict = judge(exits, policy.restart_codes, read_unsaid(status_dir, self._workers))
        if hang is not None and verdict.outcome not in (Outcome.FINISHED, Outcome.INTERRUPTED):
            verdict = Verdict(Outcome.HUNG, verdict.cause, verdict.notes)
            statuses = {**read_unreported(status_dir, hang), **statuses}
        elif timed_out or stuck:
            verdict = Verdict(Outcome.FAILED, verdict.cause, verdict.notes)
        return Incarnation(
            number=number,
            exits=exits,
            verdict=verdict,
            seconds=time.monotonic() - started_at,
            statuses=statuses,
            listened=frozenset(listening),
            address_in_use=cluster.address_in_use,
            timed_out=timed_out,
            stuck=stuck,
            in_memory=read_in_memory(status_dir, self._workers),
            hang=hang,
        )

    def _left(self) -> float:
        """Seconds until the whole job has to end."""
        return self._ends_at - time.monotonic()

    def _end_time(self) -> dict[str, str]:
        """The variable that tells workers of that end; none if they have one that is earlier."""
        at = time.time() + self._left()
        try:
            earlier = float(os.environ.get(END_TIME) or math.inf) <= at
        except ValueError:
            earlier = True  # The workers say what is wrong with it.
        return {} if earlier else {END_TIME: f"{at:.3f}"}

    def _stopped_code(self, incarnation: Incarnation, best_step: int, stop: signal.Signals) -> int:
        """The exit code of a job that was told to stop; that of a preemption only if a checkpoint is committed."""
        if stop is not signal.SIGINT and incarnation.verdict.outcome is Outcome.FINISHED:
            return EXIT_NOT_SAVED  # The signal killed the training process, and its shell ended with 0.
        # By a second Ctrl-C, after it was told to stop.
        killed = self._interrupts > 1 and stop is not signal.SIGINT
        hung = incarnation.verdict.outcome is Outcome.HUNG and stop is not signal.SIGINT
        if incarnation.verdict.outcome is Outcome.PREEMPTED or killed or hung:
            cause = incarnation.verdict.cause
            asked = cause is not None and cause.code in self._policy.restart_codes
            # A worker that never listened chose this status itself, and is believed. But a shell reports 143 for a
            # process that SIGTERM killed, which is also the status on Compute Engine.
            believed = not incarnation.listened and (cause is None or cause.code not in KILLED_BY_TERM)
            if cause is not None and asked and (incarnation.saved or believed):
                return cause.code
            # The signal killed them, before they listened or after they had saved.
            if incarnation.saved or (best_step > 0 and not incarnation.listened):
                return self._policy.restart_codes[0]
            return EXIT_NOT_SAVED if incarnation.listened else 128 + stop
        if stop is signal.SIGINT:
            return EXIT_INTERRUPTED
        return _failure_code(incarnation)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self._stop is None:
            self._stop = received
            self._stopping()
        if received is signal.SIGINT:
            self._interrupts += 1
        self._pending.append(received)
        self._deliver()

    def _deliver(self) -> None:
        """Passes signals on to the workers; those that arrive while workers start wait until all have started."""
        while self._cluster is not None and self._pending:
            received = self._pending.popleft()
            if received is signal.SIGINT and self._interrupts > 1:
                self._cluster.signal_all(signal.SIGKILL)
            else:
                self._cluster.signal_all(signal.SIGTERM if received is signal.SIGHUP else received)


def _compiled_programs(root: Path, workers: int, env: Mapping[str, str | None]) -> dict[int, dict[str, str]]:
    return {} if JAX_CACHE in env else {index: compile_cache(root, index) for index in range(workers)}


def _failure_code(incarnation: Incarnation) -> int:
    cause = incarnation.verdict.cause
    if incarnation.timed_out:
        return _TIMED_OUT
    return exit_status(cause.code) if cause is not None and cause.code != 0 else 1
