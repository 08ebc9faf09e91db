"""Runs the drilled command, each time with directories, records and preemptions of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.drill.judge import Judge, NoVerdict
from keras_preempt.cli.drill.plan import FitSpan, Preemption, RunShape
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.cli.drill.strikes import strikes
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy, Supervisor, SupervisorReport
from keras_preempt.process.environment import DRILL, DRILL_DIRECTORY, DRILL_RECORD, GRACE_PERIOD, SAVE_EVERY
from keras_preempt.report import events
from keras_preempt.state.callback_cure import cure


@dataclass(frozen=True)
class DrillRun:
    """A run that is over.

    Attributes:
        name: Such as "undisturbed".
        directory: Below which the fits have their directories.
        report: Its incarnations.
        record: Its steps.
        killed: Workers that were still there when their grace period was over, by incarnation.
        lost: Incarnations that ended as planned because a worker was killed.
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


@dataclass(frozen=True)
class Trainer:
    """Runs the drilled command.

    Args:
        workers: Number of processes.
        command: Program and arguments.
        policy: The rules for restarts.
        terminal: Where lines go.
        scratch: A local folder of this drill.
        save_every: The schedule of saves for the script; None for its own.
        grace: The grace period for the script, in seconds; None for its own.
    """

    workers: int
    command: Sequence[str]
    policy: RestartPolicy
    terminal: Terminal
    scratch: Path
    save_every: str | None
    grace: float | None

    def train(
        self,
        name: str,
        directory: str,
        plan: Sequence[Preemption] = (),
        cwd: Path | None = None,
        like: DrillRun | None = None,
    ) -> DrillRun:
        """Trains to the end, with the preemptions of the plan, one in each incarnation.

        Args:
            name: Such as "undisturbed".
            directory: Below which the fits have their checkpoints.
            plan: The preemptions.
            cwd: The working directory; this process's own if None.
            like: A run that must have the same fits.

        Raises:
            NoVerdict: The run failed or was stopped, or was not preempted as planned.
        """
        recorded = self.scratch / f"{name}-record"
        recorded.mkdir()
        with strikes(self.grace, self.terminal.say) as listening:
            judge = Judge(plan, directory, listening.killed, listening.struck, listening.lost, self.grace)

            def environment(number: int) -> dict[str, str | None]:
                listening.settle()
                judge.check_arrival(number - 1)
                drill = None
                if number < len(plan):
                    listening.expect(number, plan[number].member, supervisor.send)
                    drill = plan[number].to_json(listening.path)
                else:
                    listening.expect_none()
                settings = {DRILL_DIRECTORY: directory, DRILL_RECORD: str(recorded), DRILL: drill}
                if self.save_every is not None:
                    settings[SAVE_EVERY] = self.save_every
                if self.grace is not None:
                    settings[GRACE_PERIOD] = f"{self.grace:g}"
                return settings

            supervisor = Supervisor(
                self.workers,
                self.command,
                policy=self.policy,
                say=self.terminal.say,
                log=self.terminal.worker_line,
                environment=environment,
                expected=judge.why_expected,
                cwd=cwd,
                stopping=self.terminal.hurry,
            )
            report = supervisor.run()
            listening.settle()
        self.terminal.say(f"{name} run {report.summary}")
        record = read_run_record(recorded, len(report.incarnations), self.workers)
        run = DrillRun(name, directory, report, record, dict(listening.killed), judge.lost)
        if self.workers > 1 and _trains_alone(run):
            raise NoVerdict(
                f"each of the {self.workers} workers trains a model of its own, and the drill compares only what they "
                "train together. Make and compile the model under tf.distribute.MultiWorkerMirroredStrategy, or on JAX "
                "call keras.distribution.initialize() and set a distribution first; or drill the script with one "
                "worker."
            )
        judge.check_arrival(report.incarnations[-1].number)
        judge.check_ends(report)
        if report.exit_code != 0:
            raise NoVerdict(
                f"the {name} run {report.reason} (exit code {report.exit_code})."
                f"{judge.cure(report)}{_of_missed_state(record)}"
            )
        if like is not None:
            check_same_fits(like, run)
        judge.check(report)
        return run


def substitutions(run: DrillRun) -> list[str]:
    """Names the workers that continued from another worker's part of a checkpoint, since their own was not written."""
    return [
        f"w{event['member']} continued from the part of w{event['substituted_from']} in {event['checkpoint']}"
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
    """Checks that every start of the script had its fits in the same directories.

    Raises:
        NoVerdict: A directory differs, so that a restart finds nothing there.
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


def _of_missed_state(record: RunRecord) -> str:
    """Returns why a run has failed where that is lost state of callbacks, after a space; empty where it is not."""
    if not (missed := record.missed):
        return ""
    return (
        f" Likely cause: the error came from a callback whose state was not kept over a restart: {', '.join(missed)}. "
        f"{cure(missed)}."
    )


def _events(directory: str, *, optional: bool = False) -> list[dict[str, Any]]:
    with contextlib.closing(open_store(directory)) as store:
        try:
            return events.read(store)
        except CheckpointError as error:
            if optional:
                return []
            raise NoVerdict(f"the events of the undisturbed run cannot be read: {error}") from None


def _trains_alone(run: DrillRun) -> bool:
    """Whether one of several workers has claimed a start in which it trains alone."""
    return any(_claimed_alone(run.place(name)) for name in run.record.names())


def _claimed_alone(directory: str) -> bool:
    with contextlib.closing(open_store(directory)) as store, contextlib.suppress(CheckpointError):
        newest = incarnations.latest(store)
        return newest > 0 and incarnations.ALONE in incarnations.read(store, newest)
    return False
