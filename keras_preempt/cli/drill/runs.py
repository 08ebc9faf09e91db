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
from keras_preempt.cli.drill.signaller import signaller
from keras_preempt.cli.drill.step_records import RunRecord, read_run_record
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy, Supervisor, SupervisorReport
from keras_preempt.cluster.standby import ImportNotes
from keras_preempt.process.environment import (
    DRILL,
    DRILL_DIRECTORY,
    DRILL_RECORD,
    GRACE_PERIOD,
    MEMORY_EVERY,
    SAVE_EVERY,
)
from keras_preempt.report import events
from keras_preempt.state.callback_cure import cure


@dataclass(frozen=True)
class DrillRun:
    """A run that is over."""

    name: str
    directory: str  # Below which the fits have theirs.
    report: SupervisorReport
    record: RunRecord
    killed: Mapping[int, int]  # Workers that were killed when their grace period was over, by incarnation.
    lost: Collection[int]  # Incarnations that ended as planned because a worker was killed.

    def place(self, fit: str) -> str:
        return f"{self.directory}/{fit}" if fit else self.directory


@dataclass(frozen=True)
class Trainer:
    """Runs the drilled command."""

    workers: int
    command: Sequence[str]
    policy: RestartPolicy
    terminal: Terminal
    scratch: Path  # A local folder of this drill.
    save_every: str | None  # The schedule of saves for the script; None for its own.
    memory_every: str | None  # The same in memory.
    grace: float | None  # The grace period for the script, in seconds; None for its own.
    notes: ImportNotes | None  # What the script imports, for standbys; None: there are to be none.

    def train(
        self,
        name: str,
        directory: str,
        plan: Sequence[Preemption] = (),
        cwd: Path | None = None,
        like: DrillRun | None = None,
    ) -> DrillRun:
        """Trains to the end, with the preemptions of the plan, one in each incarnation.

        Raises NoVerdict if it fails, is stopped or is not preempted as planned, or its fits are not those of `like`.
        """
        recorded = self.scratch / f"{name}-record"
        recorded.mkdir()
        with signaller(self.grace, self.terminal.say) as signals:
            judge = Judge(plan, directory, signals.killed, signals.signalled, signals.lost, self.grace)
            judge.loses_memory = self.memory_every is not None and self.workers > 1

            def environment(number: int) -> dict[str, str | None]:
                signals.settle()
                judge.check_arrival(number - 1)
                drill = None
                if number < len(plan):
                    signals.expect((number, plan[number].member, supervisor.send))
                    drill = plan[number].to_json(signals.path)
                else:
                    signals.expect(None)
                settings = {DRILL_DIRECTORY: directory, DRILL_RECORD: str(recorded), DRILL: drill}
                if self.save_every is not None:
                    settings[SAVE_EVERY] = self.save_every
                if self.memory_every is not None:
                    settings[MEMORY_EVERY] = self.memory_every
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
                standby=0 if self.notes is None else len(plan),  # Nothing else is started again.
                notes=self.notes,
            )
            report = supervisor.run()
            signals.settle()
        self.terminal.say(f"{name} run {report.summary}")
        record = read_run_record(recorded, len(report.incarnations), self.workers)
        run = DrillRun(name, directory, report, record, dict(signals.killed), judge.lost)
        if self.workers > 1 and any(_claimed_alone(run.place(fit)) for fit in record.names()):
            raise NoVerdict(
                f"each of the {self.workers} workers trains a model of its own, and the drill compares only what they "
                "train together. Make and compile the model under tf.distribute.MultiWorkerMirroredStrategy, or on JAX "
                "call keras.distribution.initialize() and set a distribution first; or drill the script with one "
                "worker."
            )
        judge.check_arrival(report.incarnations[-1].number)
        judge.check_ends(report)
        if report.exit_code != 0:
            why = f"the {name} run {report.reason} (exit code {report.exit_code}).{judge.cure(report)}"
            if missed := record.missed:
                why += (
                    " Likely cause: the error came from a callback whose state was not kept over a restart: "
                    f"{', '.join(missed)}. {cure(missed)}."
                )
            raise NoVerdict(why)
        if like is not None:
            _check_same_fits(like, run)
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
    """Says what an undisturbed run went through. Raises NoVerdict if no fit with a PreemptionCallback finished."""
    fits = run.record.trained()
    if not any(fit.ended for fit in fits):
        raise NoVerdict(
            "the undisturbed run did not report a finished fit. Expected the script to pass a "
            "keras_preempt.PreemptionCallback to model.fit. For a trainer that resumes by itself, name the files that "
            "it leaves with --state."
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


def _check_same_fits(undisturbed: DrillRun, preempted: DrillRun) -> None:
    """Raises NoVerdict unless every start of the script had its fits in the same directories."""
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
    with contextlib.closing(open_store(directory)) as store:
        try:
            return events.read(store)
        except CheckpointError as error:
            if optional:
                return []
            raise NoVerdict(f"the events of the undisturbed run cannot be read: {error}") from None


def _claimed_alone(directory: str) -> bool:
    """Whether a worker has claimed a start in which it trains alone."""
    with contextlib.closing(open_store(directory)) as store, contextlib.suppress(CheckpointError):
        newest = incarnations.latest(store)
        return newest > 0 and incarnations.ALONE in incarnations.read_claim(store, newest)
    return False
