"""Compares what happened to the incarnations of a drill with the plan."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import click

from keras_preempt.checkpoint import documents, machine_memory
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.drill.plan import Preemption
from keras_preempt.cli.drill.signaller import LostSignal
from keras_preempt.cluster import Incarnation, Outcome, SupervisorReport
from keras_preempt.cluster.status import WorkerStatus
from keras_preempt.process.words import counted


class NoVerdict(click.ClickException):
    exit_code = 3

    def __init__(self, why: str) -> None:
        super().__init__(f"No verdict: {why}")


@dataclass
class Judge:
    """Compares what happened to the incarnations of a run with the plan. What is by incarnation may still grow."""

    plan: Sequence[Preemption]  # By incarnation.
    directory: str  # Where the run keeps its checkpoints.
    killed: Mapping[int, int]  # Workers that were killed at the end of their grace period, by incarnation.
    signalled: Collection[int] = ()  # Incarnations in which a worker got its signal.
    unheard: Mapping[int, LostSignal] = field(default_factory=dict)  # Not arrived, by incarnation.
    grace: float | None = None  # That the drill gives, in seconds.
    loses_memory: bool = False  # Whether what a killed worker has in its machine's memory goes with it.
    lost: set[int] = field(default_factory=set, init=False)  # Ended as planned, since a worker was killed.

    def why_expected(self, incarnation: Incarnation) -> str | None:
        """Says why a failure was expected: the planned worker was killed, at once or after its grace period."""
        number = incarnation.number
        cause = incarnation.verdict.cause
        if number >= len(self.plan) or cause is None or incarnation.timed_out or incarnation.stuck:
            return None
        planned, over = self.plan[number], number in self.killed
        if cause.index != planned.member or cause.code != -signal.SIGKILL or not (planned.kill or over):
            return None
        self.lost.add(number)
        how = "was killed at the end of its grace period" if over else "was killed as planned"
        place = self.directory if planned.fit is None else f"{self.directory}/{planned.fit.name}"
        within = f" of fit {planned.fit.number}" if planned.fit is not None and planned.fits > 1 else ""
        with contextlib.closing(open_store(place)) as store:
            try:
                if self.loses_memory:
                    run_id = documents.read_document(store, RUN)["run_id"]
                    machine_memory.lose(machine_memory.DEFAULT, str(run_id), planned.member)
                found = committed(store)
                where = "the directory has" if self.loses_memory else "there is"
                newest = f"{where} no checkpoint yet"
                if found:
                    newest = f"the newest checkpoint{within} is of step {found[0].step}"
            except (CheckpointError, KeyError) as error:
                newest = f"its checkpoints cannot be listed ({error})"
        return f"w{cause.index} {how}; {newest}"

    def check_arrival(self, number: int) -> None:
        """Raises NoVerdict if the signal of that incarnation was sent and did not reach the training process."""
        lost = self.unheard.get(number)
        if lost is None or number >= len(self.plan):
            return
        if lost.started == lost.training:
            raise NoVerdict(_not_listening(lost.member, lost.signal))
        raise NoVerdict(
            f"{lost.signal} does not reach the training. It was sent to the process that the launcher had started "
            f"(process {lost.started}), as a machine would, but another process trains (process {lost.training}), and "
            "did not get it: a real preemption would lose everything since the last checkpoint. Let the shell become "
            "the script (exec python train.py as its last command), or pass the signal on: python train.py & child=$!; "
            "trap 'kill -TERM $child' TERM; wait $child; wait $child"
        )

    def check_ends(self, report: SupervisorReport) -> None:
        """Raises NoVerdict if a worker reported its exit status and did not end."""
        for index, status in report.incarnations[-1].stuck.items():
            raise NoVerdict(
                f"w{index} was preempted and reported that it exits with status {status}, but did not end. Whatever "
                "waits for such a process waits as long, or the machine goes away first. The checkpoint is not "
                "affected. Check what the script does when SystemExit leaves fit (finally, except, the rest of a shell "
                "script), and let it end."
            )

    def check(self, report: SupervisorReport) -> None:
        """Raises NoVerdict unless each preemption of the plan happened, each in an incarnation of its own."""
        for number, planned in enumerate(self.plan):
            if number in self.lost or (
                number < len(report.incarnations)
                and report.incarnations[number].verdict.outcome is Outcome.PREEMPTED
            ):
                continue
            if number in self.signalled and self.grace is not None:
                raise NoVerdict(
                    f"training came to its end in the grace period that began with {planned}, so that nothing had to "
                    "be restored. Shorten the grace period, choose an earlier moment (--at step:N), or train for "
                    "longer."
                )
            if number in self.signalled:
                raise NoVerdict(
                    f"{planned.signal} came so late that training finished without having to stop: {planned}. Nothing "
                    "had to be restored. Choose an earlier moment (--at step:N), or train for longer."
                )
            raise NoVerdict(
                f"expected {counted(len(self.plan), 'preemption')}. Received: {number}; this one did not come: "
                f"{planned}. Does the script train the same steps in every start, each fit with a PreemptionCallback?"
            )
        if not self.plan and report.count(Outcome.PREEMPTED) > 0:
            raise NoVerdict("the undisturbed run was preempted from outside. Run the drill again.")

    def cure(self, report: SupervisorReport) -> str:
        """Returns what to do about a run that failed, after a space; empty where that is not known."""
        last = report.incarnations[-1]
        cause, number = last.verdict.cause, last.number
        if number >= len(self.plan) or cause is None or cause.index != self.plan[number].member:
            return ""
        planned = self.plan[number]
        by_the_signal = not planned.kill and cause.code == -signal.Signals[planned.signal]
        saved = last.statuses.get(planned.member, WorkerStatus()).saved
        if by_the_signal and (planned.signal == "SIGINT" or not saved):
            return f" {_not_listening(planned.member, planned.signal)}"
        return ""


def _not_listening(member: int, signal: str) -> str:
    return (
        f"{signal} ended w{member}: the script does not listen for it. Pass "
        f'PreemptionCallback(..., termination=TerminationConfig(signals=("{signal}",))), or name the signal that it '
        "listens for with --signal."
    )
