"""Drills any trainer that resumes by itself: only its output, its exit status and the files that it leaves are known.

The moment of a preemption is a line of output, or a time since the start. A start that was preempted is followed by
another, whatever its exit status: trainers that save on a notice end with 0, with 143, or with a status of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.cli.compare import Comparison
from keras_preempt.cli.drill.directories import WorkingDirectories, run_directories
from keras_preempt.cli.drill.judge import NoVerdict
from keras_preempt.cli.drill.plan import Moment, Strike, plan_strikes
from keras_preempt.cli.drill.result import DrillResult, print_result_of_files
from keras_preempt.cli.drill.state_files import UnreadableFile, check_readable, compare_files
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.cluster.outcome import exit_status
from keras_preempt.process.environment import INCARNATION, STATUS_DIR
from keras_preempt.process.words import counted, some

_NAMED = 5  # files that a message names


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises UsageError for a pattern that means no files of the working directory, or files that are there already."""
    for pattern in patterns:
        parts = Path(pattern).parts
        if not parts or Path(pattern).is_absolute() or ".." in parts:
            raise click.UsageError(
                f"Expected --state to be a pattern of files below the working directory, of which each run gets a "
                f"copy. Received: {pattern!r}. Let the script write below that directory: --state 'out/*.safetensors'"
            )
    if left := state_files(Path.cwd(), patterns):
        raise click.UsageError(
            f"Expected no file that --state names before the training. Received: {some(sorted(left), _NAMED)}. "
            "The script would continue from an earlier training, or its old files would be compared. Remove them, with "
            "the checkpoints beside them, or start the drill in a directory without them."
        )


def state_files(directory: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """Returns the files that the patterns mean, by their names below a directory; of a folder all files in it."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        for match in directory.glob(pattern):
            files = match.rglob("*") if match.is_dir() else [match]
            found |= {str(path.relative_to(directory)): path for path in files if path.is_file()}
    return found


@dataclass
class MomentWatch:
    """Counts lines over all starts of a run, and tells when the moment of a strike has come."""

    send: Callable[[int], object] = lambda number: None  # Sends a signal to the worker of the strike.
    strike: Strike | None = None  # Of this start.
    lines: int = 0
    sent: bool = False
    killed: bool = False  # It outlived its grace period.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_line(self, line: str) -> None:
        self.lines += 1
        moment = None if self.strike is None else self.strike.moment
        if moment is None or moment.kind != "line":
            return
        if moment.text in line if moment.text else self.lines >= (moment.number or 0):
            self.fire()

    def fire(self) -> None:
        """Sends the signal, once in a start."""
        with self._lock:
            if self.strike is None or self.sent:
                return
            number = signal.SIGKILL if self.strike.kill else signal.Signals[self.strike.signal]
            self.sent = bool(self.send(number))  # Not if the worker is gone already.

    def kill_after(self, grace: float, over: threading.Event) -> None:
        """Kills the worker in so many seconds, unless the start is over before."""
        if not over.wait(grace):
            self.killed = bool(self.send(signal.SIGKILL))


@dataclass
class FilesRun:
    """A run that is over.

    Attributes:
        files: By their names below its working directory.
        lines: How many lines it has printed.
        seconds: Wall time of all starts together.
        strikes: The preemptions, with how the workers have ended.
        killed: The starts whose worker outlived its grace period.
    """

    files: Mapping[str, Path]
    lines: int
    seconds: float
    strikes: Sequence[Strike] = ()
    killed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FilesTrainer:
    """Runs the drilled command and finds what it leaves."""

    workers: int
    command: Sequence[str]
    policy: RestartPolicy
    terminal: Terminal
    patterns: Sequence[str]
    grace: float | None  # Seconds from the notice until the worker is killed; None: it is not.

    def train(self, name: str, cwd: Path, plan: Sequence[Strike] = ()) -> FilesRun:
        """Trains to the end, with one preemption in each start.

        Raises NoVerdict if it fails, is stopped, is not preempted as planned, or leaves no file that was asked for.
        """
        watch, seconds = MomentWatch(), 0.0
        ended: list[Strike] = []
        killed: set[int] = set()
        before: dict[str, bytes] = {}
        for number in range(len(plan) + 1):
            strike = plan[number] if number < len(plan) else None
            watch.strike, watch.sent, watch.killed = strike, False, False
            if strike is None:
                before = _digests(state_files(cwd, self.patterns))
            status = self._start(name, cwd, watch, number)
            seconds += status.seconds
            if strike is None:
                break
            if not watch.sent:
                raise NoVerdict(
                    f"expected {counted(len(plan), 'preemption')}. Received: {number}; this one did not come: "
                    f"{strike}. That start ended with exit status {status.code(strike.member)} before. Choose an "
                    "earlier moment (--at line:TEXT), and look whether the script had found files of the first run "
                    "under an absolute path."
                )
            if watch.killed:
                killed.add(number)
            ended.append(replace(strike, ended=status.code(strike.member)))
            self.terminal.say(f"start {number + 1} was preempted: {ended[-1]}: starting again")
        failed = [f"w{index} with {code}" for index, code in sorted(status.codes.items()) if code]
        if failed:
            raise NoVerdict(
                f"the {name} run failed in {'a start' if plan else 'the start'} that nobody disturbed: "
                f"{some(failed, _NAMED)} (exit status)."
            )
        self.terminal.say(
            f"{name} run finished: starts={len(plan) + 1} lines={watch.lines} seconds={seconds:.1f}"
        )
        files = state_files(cwd, self.patterns)
        if not files and not plan:
            raise NoVerdict(
                f"the {name} run left no file that --state means: {some(self.patterns, _NAMED)}. Patterns are below "
                "the working directory of the script, of which each run gets a copy."
            )
        if plan and files and _digests(files) == before:
            raise NoVerdict(
                f"the last start changed none of the files ({some(sorted(files), _NAMED)}): training had come to its "
                "end before the preemption, so that nothing had to be resumed, or these are not the files of its end. "
                "Choose an earlier moment (--at line:TEXT or second:N), or other files."
            )
        return FilesRun(files, watch.lines, seconds, ended, frozenset(killed))

    def _start(self, name: str, cwd: Path, watch: MomentWatch, number: int) -> _Ended:
        stopped = threading.Event()

        def log(member: int, line: str) -> None:
            self.terminal.worker_line(member, line)
            watch.on_line(line)

        def stopping() -> None:
            stopped.set()
            self.terminal.hurry()

        def environment(of_supervisor: int) -> dict[str, str | None]:
            # Without a folder for its status: what a script with a PreemptionCallback says does not count here.
            return {INCARNATION: str(number), STATUS_DIR: None}

        supervisor = Supervisor(
            self.workers,
            _found_in_copy(self.command, cwd),
            policy=self.policy,
            say=self.terminal.say,
            log=log,
            environment=environment,
            cwd=cwd,
            stopping=stopping,
        )
        member = 0 if watch.strike is None else watch.strike.member
        watch.send = lambda number: supervisor.send(member, number)
        with _timers(watch, self.grace):
            report = supervisor.run()
        last = report.incarnations[-1]
        if stopped.is_set():
            raise NoVerdict(f"the {name} run was {report.reason}.")
        if last.timed_out:
            raise NoVerdict(f"a start of the {name} run took longer than its --timeout, and was ended.")
        return _Ended({each.index: exit_status(each.code) for each in last.exits}, last.seconds)


@dataclass(frozen=True)
class _Ended:
    codes: Mapping[int, int]  # Exit statuses as a shell tells them, by worker.
    seconds: float

    def code(self, member: int) -> int:
        return self.codes.get(member, 0)


@contextlib.contextmanager
def _timers(watch: MomentWatch, grace: float | None) -> Iterator[None]:
    """Fires at a second of the start, and kills at the end of the grace period, in threads of their own."""
    over = threading.Event()
    threads = []
    moment = None if watch.strike is None else watch.strike.moment

    def at_second(seconds: float) -> None:
        if not over.wait(seconds):
            watch.fire()

    send = watch.send
    if grace is not None:

        def and_later(number: int) -> object:
            result = send(number)
            if number != signal.SIGKILL:
                limit = threading.Thread(target=watch.kill_after, args=(grace, over), daemon=True)
                limit.start()
                threads.append(limit)
            return result

        watch.send = and_later
    if moment is not None and moment.kind == "second":
        timer = threading.Thread(target=at_second, args=(float(moment.number or 0),), daemon=True)
        threads.append(timer)
        timer.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _digests(files: Mapping[str, Path]) -> dict[str, bytes]:
    return {name: hashlib.sha256(path.read_bytes()).digest() for name, path in files.items()}


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Raises NoVerdict where a file cannot be read."""
    try:
        yield
    except (UnreadableFile, OSError) as error:
        raise NoVerdict(f"a file cannot be compared. {error}") from error


def compared_files(one: FilesRun, other: FilesRun) -> Comparison:
    """Compares what two runs have left; raises NoVerdict where a file cannot be read."""
    with _reading():
        return compare_files(one.files, other.files)


def _found_in_copy(command: Sequence[str], copy: Path) -> list[str]:
    """Returns a command whose program is found in the copy of the working directory, which has no environments."""
    program = command[0]
    if os.sep in program and not (copy / program).exists() and Path(program).exists():
        program = os.path.abspath(program)
    return [program, *command[1:]]


def likely_causes_of_files(repeatable: bool | None) -> list[str]:
    """Says why two runs are likely to differ; `repeatable` as in `cause.likely_causes`."""
    if repeatable is False:
        return [
            "The script does not repeat itself: two undisturbed runs of it give different results. It has to before a "
            "drill can prove anything: set seeds, and use deterministic operations."
        ]
    found = [
        "Likely cause: something that the checkpoint lacks or the restart does not restore: the position in the data, "
        "the states of random generators, the optimizer or its schedule; or steps that were run again on other data."
    ]
    if repeatable is None:
        found.append("Whether the script repeats itself without preemptions: add --twice to find out.")
    else:
        found.append("A second undisturbed run was identical: without preemptions the script repeats itself.")
    return found


@dataclass(frozen=True)
class FilesDrill:
    """What is asked for: the options of the command.

    Attributes:
        trainer: Runs the command.
        wanted: When preemptions come, one in each start; or how many to draw.
        signal: The notice.
        kill: Whether SIGKILL comes without a notice.
        keep: A directory for both runs; None for a temporary one.
        twice: Whether to train undisturbed once more if the results differ.
    """

    trainer: FilesTrainer
    wanted: Sequence[Moment] | int
    signal: str
    kill: bool
    keep: str | None
    twice: bool

    def run(self, result: DrillResult) -> None:
        """Trains, preempts, compares, and prints; `result` has at each moment what is known.

        Raises NoVerdict and NoSuchMoment, UsageError for a directory that cannot be used.
        """
        say = self.trainer.terminal.say
        with contextlib.ExitStack() as stack:
            kept = None if self.keep is None else stack.enter_context(run_directories(self.keep)).path
            if self.keep is not None and kept is None:
                raise click.UsageError(
                    f"Expected --keep with --state to be a path: both runs work there. Received: {self.keep}."
                )
            scratch = Path(kept or stack.enter_context(scratch_directory("drill"))).resolve()
            places = WorkingDirectories(scratch, None, isolate=True)
            say("drill 1 of 2: undisturbed", style="bold")
            undisturbed = self.trainer.train("undisturbed", places.copy_for("undisturbed"))
            result.files = sorted(undisturbed.files)
            with _reading():  # What cannot be read is said before the second run.
                check_readable(undisturbed.files)
            result.plan = plan = plan_strikes(
                result.seed, self.wanted, undisturbed.lines, self.trainer.workers, self.signal, self.kill
            )
            planned = (
                f"{', '.join(map(str, plan))} (of {counted(undisturbed.lines, 'line')}, --seed {result.seed})"
            )
            say(f"drill 2 of 2: preempted: {planned}", style="bold")
            preempted = self.trainer.train("preempted", places.copy_for("preempted"), plan)
            result.plan, result.killed = preempted.strikes, preempted.killed
            result.comparison = compared_files(undisturbed, preempted)
            result.seconds_lost = preempted.seconds - undisturbed.seconds
            if not result.identical:
                repeatable = None
                if self.twice:
                    say("drill, once more: undisturbed again", style="bold")
                    again = self.trainer.train("repeated", places.copy_for("repeated"))
                    repeatable = compared_files(undisturbed, again).identical
                result.causes = likely_causes_of_files(repeatable)
        print_result_of_files(self.trainer.terminal, result, self.keep)
