"""Whether what happened to the incarnations of a drill is what was planned for them."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence

import click

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.drill.plan import Preemption
from keras_preempt.cli.drill.strikes import Lost
from keras_preempt.cluster import Incarnation, Outcome, SupervisorReport
from keras_preempt.cluster.status import WorkerStatus

__all__ = ["Judge", "NoVerdict"]


class NoVerdict(click.ClickException):
    """A run gave no final state to compare."""

    exit_code = 3

    def __init__(self, why: str) -> None:
        super().__init__(f"No verdict: {why}")


class Judge:
    """Compares what happened to the incarnations of a run with what was planned for them.

    Args:
        plan: what was planned, by incarnation.
        directory: of the checkpoints of the run.
        killed: workers that were killed at the end of their grace period, by incarnation; may still grow.
        struck: incarnations in which a worker got its signal; may still grow.
        unheard: signals that have not arrived, by incarnation; may still change.

    Attributes:
        lost: see `DrillRun`.
    """

    def __init__(
        self,
        plan: Sequence[Preemption],
        directory: str,
        killed: Mapping[int, int],
        struck: Collection[int] = (),
        unheard: Mapping[int, Lost] | None = None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._killed = killed
        self._struck = struck
        self._unheard = {} if unheard is None else unheard
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
        return f"w{cause.index} {how}; {_newest(self._directory, planned)}"

    def check_arrival(self, number: int) -> None:
        """Raises NoVerdict if the signal of that incarnation was sent and never came to the training process."""
        lost = self._unheard.get(number)
        if lost is None or number >= len(self._plan):
            return
        if lost.started == lost.training:
            raise NoVerdict(_deaf(lost.member, lost.signal))
        raise NoVerdict(
            f"{lost.signal} does not reach the training. It was sent to the process that the launcher had started "
            f"(process {lost.started}), as a machine would, and the process that trains is another one (process "
            f"{lost.training}), which heard nothing of it: a real preemption would lose everything since the last "
            "checkpoint. Let the shell become the script (exec python train.py as its last command), or pass the "
            "signal on: python train.py & child=$!; trap 'kill -TERM $child' TERM; wait $child; wait $child"
        )

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
                    "Does the script train the same steps in every start, each fit with a PreemptionCallback?"
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
            return f" {_deaf(planned.member, planned.signal)}"
        return ""


def _deaf(member: int, signal: str) -> str:
    return (
        f"{signal} ended w{member}: the script does not listen for it. Pass "
        f'PreemptionCallback(..., termination=TerminationConfig(signals=("{signal}",))), or name the signal that it '
        "listens for with --signal."
    )


def _newest(directory: str, planned: Preemption) -> str:
    place = directory if planned.fit is None else f"{directory}/{planned.fit.name}"
    store = open_store(place)
    try:
        found = committed(store)
    except CheckpointError as error:
        return f"its checkpoints cannot be listed ({error})"
    finally:
        store.close()
    within = f" of fit {planned.fit.number}" if planned.fit is not None and planned.fits > 1 else ""
    return (
        f"the newest checkpoint{within} is of step {found[0].step}" if found else "there is no checkpoint yet"
    )
