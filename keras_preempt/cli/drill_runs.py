"""The runs of a drill: the same command, with directories, records and preemptions of their own."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from keras_preempt import events
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.store import open_store
from keras_preempt.cli.moments import RunShape
from keras_preempt.cli.preemption_plan import Preemption
from keras_preempt.cli.step_records import RunRecord, read_run_record
from keras_preempt.cli.strikes import strikes
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import Incarnation, Outcome, RestartPolicy, Supervisor, SupervisorReport
from keras_preempt.cluster.status import WorkerStatus
from keras_preempt.environment import DIRECTORY, DRILL, DRILL_RECORD, GRACE_PERIOD, SAVE_EVERY

__all__ = ["DrillRun", "Judge", "NoVerdict", "Trainer", "shape_of", "substitutions"]


class NoVerdict(click.ClickException):
    """A run gave no final state to compare."""

    exit_code = 3

    def __init__(self, why: str) -> None:
        super().__init__(f"No verdict: {why}")


@dataclass(frozen=True)
class DrillRun:
    """A run that came to its end.

    Attributes:
        name: such as "undisturbed".
        directory: of its checkpoints.
        report: its incarnations.
        record: its steps.
        killed: workers that were still there when their grace period was over, by incarnation.
        lost: incarnations that ended, as planned, by the end of a worker that had no time to save.
    """

    name: str
    directory: str
    report: SupervisorReport
    record: RunRecord
    killed: Mapping[int, int]
    lost: Collection[int]


class Trainer:
    """Runs the drilled command.

    Args:
        workers: number of processes.
        command: program and arguments.
        policy: when to start again after a preemption.
        terminal: where lines go.
        scratch: a local folder of this drill.
        save_every: the schedule of saves to give the script; None for its own.
        grace: the grace period to give it, in seconds; None for its own.
    """

    def __init__(
        self,
        workers: int,
        command: Sequence[str],
        *,
        policy: RestartPolicy,
        terminal: Terminal,
        scratch: Path,
        save_every: str | None,
        grace: float | None,
    ) -> None:
        self.workers = workers
        self._command = command
        self._policy = policy
        self._terminal = terminal
        self._scratch = scratch
        self._settings: dict[str, str | None] = {}
        if save_every is not None:
            self._settings[SAVE_EVERY] = save_every
        if grace is not None:
            self._settings[GRACE_PERIOD] = f"{grace:g}"
        self._grace = grace

    def train(
        self, name: str, directory: str, plan: Sequence[Preemption] = (), cwd: Path | None = None
    ) -> DrillRun:
        """Trains to the end, with a preemption in each incarnation that the plan has one for.

        Raises:
            NoVerdict: The run failed or was stopped, or was not preempted as planned.
        """
        recorded = self._scratch / f"{name}-record"
        recorded.mkdir()
        with strikes(self._grace, self._terminal.say) as listening:
            judge = Judge(plan, directory, listening.killed, listening.struck)

            def environment(number: int) -> dict[str, str | None]:
                drill = None
                if number < len(plan):
                    listening.expect(number, plan[number].member, supervisor.kill)
                    drill = plan[number].to_json(listening.path)
                else:
                    listening.expect_none()
                own = {DIRECTORY: directory, DRILL_RECORD: str(recorded), DRILL: drill}
                return {**self._settings, **own}

            supervisor = Supervisor(
                self.workers,
                self._command,
                policy=self._policy,
                say=self._terminal.say,
                log=self._terminal.worker_line,
                environment=environment,
                expected=judge.why_expected,
                cwd=cwd,
                stopping=self._terminal.hurry,
            )
            report = supervisor.run()
        self._terminal.say(f"{name} run {report.summary}")
        record = read_run_record(recorded, len(report.incarnations), self.workers)
        if (report.exit_code != 0 or record.fits > 1) and _trains_alone(directory):
            raise NoVerdict(
                f"each of the {self.workers} workers trains a model of its own, all of them in the one directory of "
                "the drill. Make and compile the model under tf.distribute.MultiWorkerMirroredStrategy, or drill "
                "the script with one worker."
            )
        if report.exit_code != 0:
            raise NoVerdict(
                f"the {name} run {report.reason} (exit code {report.exit_code}).{judge.cure(report)}"
            )
        if record.fits > 1:
            raise NoVerdict(
                f"the script calls fit with a PreemptionCallback {record.fits} times, and the drill has one "
                "directory for all of them. Drill each fit by itself, in a script that makes one."
            )
        judge.check(report)
        return DrillRun(name, directory, report, record, dict(listening.killed), judge.lost)


class Judge:
    """Compares what happened to the incarnations of a run with what was planned for them.

    Args:
        plan: what was planned, by incarnation.
        directory: of the checkpoints of the run.
        killed: workers that were killed at the end of their grace period, by incarnation; may still grow.
        struck: incarnations in which a worker got its signal; may still grow.

    Attributes:
        lost: see `DrillRun`.
    """

    def __init__(
        self,
        plan: Sequence[Preemption],
        directory: str,
        killed: Mapping[int, int],
        struck: Collection[int] = (),
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._killed = killed
        self._struck = struck
        self.lost: set[int] = set()

    def why_expected(self, incarnation: Incarnation) -> str | None:
        """Says why a failure is none: the planned worker was killed, by itself or when its time was over."""
        number = incarnation.number
        if number >= len(self._plan) or incarnation.verdict.cause is None or incarnation.timed_out:
            return None
        planned, cause = self._plan[number], incarnation.verdict.cause
        over = self._killed.get(number)
        if cause.index != planned.member or cause.code != -signal.SIGKILL:
            return None
        if not planned.kill and over is None:
            return None
        self.lost.add(number)
        how = "was killed as planned" if over is None else "was killed at the end of its grace period"
        return f"w{cause.index} {how}; {_newest(self._directory)}"

    def check(self, report: SupervisorReport) -> None:
        """Raises NoVerdict unless each preemption of the plan has happened, each in an incarnation of its own."""
        for number, planned in enumerate(self._plan):
            happened = number < len(report.incarnations) and (
                report.incarnations[number].verdict.outcome is Outcome.PREEMPTED or number in self.lost
            )
            if not happened and number in self._struck:
                raise NoVerdict(
                    f"training came to its end in the grace period that began with {planned}, so that nothing had to "
                    "be restored. Shorten the grace period, choose an earlier moment (--at step:N), or train for "
                    "longer."
                )
            if not happened:
                raise NoVerdict(
                    f"expected {len(self._plan)} preemptions. Received: {number}; this one did not come: {planned}. "
                    "Does the script run all its training steps in one fit with a PreemptionCallback?"
                )
        if not self._plan and report.count(Outcome.PREEMPTED) > 0:
            raise NoVerdict("the undisturbed run was preempted from outside. Run the drill again.")

    def cure(self, report: SupervisorReport) -> str:
        """Says what to do about a run that failed, where that is known; begins with a space if not empty."""
        last = report.incarnations[-1]
        cause, number = last.verdict.cause, last.number
        if number >= len(self._plan) or cause is None or cause.index != self._plan[number].member:
            return ""
        planned = self._plan[number]
        if (
            not planned.kill
            and cause.code == -signal.Signals[planned.signal]
            and not last.statuses.get(planned.member, WorkerStatus()).saved
        ):
            return (
                f" {planned.signal} ended w{planned.member}: the script does not listen for it. Pass "
                f'PreemptionCallback(..., termination=TerminationConfig(signals=("{planned.signal}",))), or leave '
                "--signal out."
            )
        return ""


def substitutions(run: DrillRun) -> list[str]:
    """Names the workers that went on from another one's part of a checkpoint, since their own was not written."""
    store = open_store(run.directory)
    try:
        told = events.read(store)
    except CheckpointError:
        return []
    finally:
        store.close()
    return [
        f"w{event['member']} went on from the part of w{event['substituted_from']} in {event['checkpoint']}"
        for event in told
        if event["event"] == "restore" and event.get("substituted_from") is not None
    ]


def shape_of(run: DrillRun) -> RunShape:
    """Says what an undisturbed run went through.

    Raises:
        NoVerdict: It did not finish a fit with a PreemptionCallback.
    """
    steps = [status.step for status in run.report.incarnations[-1].statuses.values() if status.finished]
    if not steps:
        raise NoVerdict(
            "the undisturbed run did not report a finished fit. Expected the script to pass a "
            "keras_preempt.PreemptionCallback to model.fit."
        )
    store = open_store(run.directory)
    try:
        told = events.read(store)
    except CheckpointError as error:
        raise NoVerdict(f"the events of the undisturbed run cannot be read: {error}") from None
    finally:
        store.close()
    saved = [int(event["step"]) for event in told if event["event"] == "save" and event["member"] == 0]
    return RunShape(max(steps), run.record.validations, saved[:-1])  # The last one is that of the end.


def _trains_alone(directory: str) -> bool:
    """Whether a worker has claimed a start in which it trains alone, as one of several."""
    store = open_store(directory)
    try:
        newest = incarnations.latest(store)
        return newest > 0 and incarnations.ALONE in incarnations.read(store, newest)
    except CheckpointError:
        return False
    finally:
        store.close()


def _newest(directory: str) -> str:
    store = open_store(directory)
    try:
        found = committed(store)
    except CheckpointError as error:
        return f"its checkpoints cannot be listed ({error})"
    finally:
        store.close()
    return f"the newest checkpoint is of step {found[0].step}" if found else "there is no checkpoint yet"
