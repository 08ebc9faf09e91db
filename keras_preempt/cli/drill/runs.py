"""The runs of a drill: the same command, with directories, records and preemptions of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.drill.judge import Judge, NoVerdict
from keras_preempt.cli.drill.moments import FitSpan, RunShape
from keras_preempt.cli.drill.plan import Preemption
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.cli.drill.strikes import strikes
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy, Supervisor, SupervisorReport
from keras_preempt.process.environment import DRILL, DRILL_DIRECTORY, DRILL_RECORD, GRACE_PERIOD, SAVE_EVERY
from keras_preempt.report import events

__all__ = ["DrillRun", "Trainer", "check_same_fits", "shape_of", "substitutions"]


@dataclass(frozen=True)
class DrillRun:
    """A run that came to its end.

    Attributes:
        name: such as "undisturbed".
        directory: that in which the fits have theirs.
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

    def place(self, fit: str) -> str:
        """Returns the directory of the checkpoints of a fit."""
        return f"{self.directory}/{fit}" if fit else self.directory


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
        self,
        name: str,
        directory: str,
        plan: Sequence[Preemption] = (),
        cwd: Path | None = None,
        like: DrillRun | None = None,
    ) -> DrillRun:
        """Trains to the end, with a preemption in each incarnation that the plan has one for.

        Args:
            name: such as "undisturbed".
            directory: below which the fits have their checkpoints.
            plan: the preemptions.
            cwd: the working directory; this process's own if None.
            like: a run whose fits this one has to have too.

        Raises:
            NoVerdict: The run failed or was stopped, or was not preempted as planned.
        """
        recorded = self._scratch / f"{name}-record"
        recorded.mkdir()
        with strikes(self._grace, self._terminal.say) as listening:
            judge = Judge(plan, directory, listening.killed, listening.struck, listening.lost)

            def environment(number: int) -> dict[str, str | None]:
                listening.settle()
                judge.check_arrival(number - 1)
                drill = None
                if number < len(plan):
                    listening.expect(number, plan[number].member, supervisor.send)
                    drill = plan[number].to_json(listening.path)
                else:
                    listening.expect_none()
                own = {DRILL_DIRECTORY: directory, DRILL_RECORD: str(recorded), DRILL: drill}
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
            listening.settle()
        self._terminal.say(f"{name} run {report.summary}")
        record = read_run_record(recorded, len(report.incarnations), self.workers)
        run = DrillRun(name, directory, report, record, dict(listening.killed), judge.lost)
        if self.workers > 1 and _trains_alone(run):
            raise NoVerdict(
                f"each of the {self.workers} workers trains a model of its own, and the drill compares only what they "
                "train together. Make and compile the model under tf.distribute.MultiWorkerMirroredStrategy, or drill "
                "the script with one worker."
            )
        judge.check_arrival(report.incarnations[-1].number)
        if report.exit_code != 0:
            raise NoVerdict(
                f"the {name} run {report.reason} (exit code {report.exit_code}).{judge.cure(report)}"
            )
        if like is not None:
            check_same_fits(like, run)
        judge.check(report)
        return run


def substitutions(run: DrillRun) -> list[str]:
    """Names the workers that went on from another one's part of a checkpoint, since their own was not written."""
    return [
        f"w{event['member']} went on from the part of w{event['substituted_from']} in {event['checkpoint']}"
        for name in run.record.names()
        for event in _events(run.place(name), optional=True)
        if event["event"] == "restore" and event.get("substituted_from") is not None
    ]


def shape_of(run: DrillRun) -> RunShape:
    """Says what an undisturbed run went through.

    Raises:
        NoVerdict: It did not finish a fit with a PreemptionCallback.
    """
    fits = run.record.trained()
    if not any(fit.ended for fit in fits):
        raise NoVerdict(
            "the undisturbed run did not report a finished fit. Expected the script to pass a "
            "keras_preempt.PreemptionCallback to model.fit."
        )
    spans: list[FitSpan] = []
    validations: list[tuple[int, int]] = []
    saves: list[int] = []
    boundaries: list[int] = []
    for fit in fits:
        first = spans[-1].end if spans else 0
        span = FitSpan(len(spans) + 1, fit.name, first, first + fit.last - fit.first, fit.first)
        spans.append(span)
        validations += [(span.step_of_run(step), batch) for step, batch in fit.validations]
        boundaries += [step for each in fit.boundaries if (step := span.step_of_run(each)) < span.end]
        saved = [
            int(event["step"])
            for event in _events(run.place(fit.name))
            if event["event"] == "save" and event["member"] == 0
        ]
        saves += [span.step_of_run(step) for step in saved[:-1]]  # The last one is that of the end.
    return RunShape(spans[-1].end, validations, saves, spans, boundaries)


def check_same_fits(undisturbed: DrillRun, preempted: DrillRun) -> None:
    """Makes sure that every start of the script had its fits where the others had theirs.

    Raises:
        NoVerdict: A directory was another one, so that a restart finds nothing there.
    """
    known = {fit.name: fit.directory for fit in undisturbed.record.fits(0)}
    for fit in preempted.record.all_fits():
        if fit.name not in known:
            first = next(iter(known.values()), "")
            raise NoVerdict(
                f"the script gives its PreemptionCallback another directory in each start: {first!r}, then "
                f"{fit.directory!r}. A restart finds no checkpoint there. Pass one that is the same in every start, "
                "without the time or a random part in its name."
            )


def _events(directory: str, *, optional: bool = False) -> list[dict[str, Any]]:
    store = open_store(directory)
    try:
        return events.read(store)
    except CheckpointError as error:
        if optional:
            return []
        raise NoVerdict(f"the events of the undisturbed run cannot be read: {error}") from None
    finally:
        store.close()


def _trains_alone(run: DrillRun) -> bool:
    """Whether a worker has claimed a start in which it trains alone, as one of several."""
    return any(_claimed_alone(run.place(name)) for name in run.record.names())


def _claimed_alone(directory: str) -> bool:
    store = open_store(directory)
    try:
        newest = incarnations.latest(store)
        return newest > 0 and incarnations.ALONE in incarnations.read(store, newest)
    except CheckpointError:
        return False
    finally:
        store.close()
