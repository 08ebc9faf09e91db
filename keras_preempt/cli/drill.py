"""``keras-preempt drill``: trains undisturbed, then with real preemptions, and compares the final states."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import click

from keras_preempt.cli.compare import compare_states
from keras_preempt.cli.drill_report import print_comparison, print_times, steps_lost, verdict_line
from keras_preempt.cli.final_state import NoFinalState, read_final_state
from keras_preempt.cli.options import checked_command, command_argument, restart_code_option, workers_option
from keras_preempt.cli.preemption_plan import Preemption, plan_preemptions
from keras_preempt.cli.run_directories import run_directories
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import Outcome, RestartPolicy, Supervisor, SupervisorReport
from keras_preempt.environment import DIRECTORY, DRILL

__all__ = ["drill"]

_IDENTICAL, _DIFFERENT, _RUN_FAILED = 0, 1, 3


class _RunFailed(click.ClickException):
    """A run gave no final state to compare."""

    exit_code = _RUN_FAILED


@click.command(context_settings={"allow_interspersed_args": False})
@workers_option
@click.option(
    "--preempt",
    "count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Preemptions in the second run, each in an incarnation of its own.",
)
@click.option("--seed", type=int, metavar="S", help="Chooses steps and workers; drawn and printed if absent.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that one incarnation may take.",
)
@click.option(
    "--keep",
    metavar="DIR",
    help="Keep both runs' checkpoints in DIR: a path, or gs://bucket/prefix; new or empty. Else they are in a "
    "temporary directory and removed.",
)
@restart_code_option
@command_argument
def drill(
    workers: int,
    count: int,
    seed: int | None,
    timeout: float,
    keep: str | None,
    restart_codes: tuple[int, ...],
    command: tuple[str, ...],
) -> int:
    """Prove that preemptions lose nothing: same script, same bits.

    Trains once undisturbed, then again with K real preemptions: a random worker gets SIGTERM right before a
    random step, the cluster saves, leaves and is started again. Then the two final states are compared byte
    by byte: weights, optimizer slots, seeds, metrics, and the state of callbacks with History.

    \b
    Example:
      keras-preempt drill --workers 2 --preempt 3 --seed 7 -- python train.py

    COMMAND has to be repeatable: fixed seeds, a fixed number of steps, a PreemptionCallback in fit. The
    directory of that callback is replaced by a fresh one for each of the two runs (by the environment
    variable KERAS_PREEMPT_DIRECTORY); whatever else the script writes, it writes twice.

    \b
    Exit codes:
      0  identical
      1  different; the places are named
      2  wrong usage
      3  a run failed or was stopped, so there is no verdict
    """  # noqa: D301 - click's own mark for text that it must not wrap
    arguments = checked_command(workers, command)
    try:
        policy = RestartPolicy(
            restart_codes=restart_codes, max_restarts_without_progress=count, incarnation_timeout=timeout
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    chosen = random.SystemRandom().randrange(2**31) if seed is None else seed
    terminal = Terminal()
    with run_directories(keep) as directories:

        def train(name: str, environment: Callable[[int], Mapping[str, str | None]]) -> SupervisorReport:
            directory = directories.of(name)
            report = Supervisor(
                workers,
                arguments,
                policy=policy,
                say=terminal.say,
                log=terminal.worker_line,
                environment=lambda number: {DIRECTORY: directory, **environment(number)},
            ).run()
            terminal.say(f"{name} run {report.summary}")
            if report.exit_code != 0:
                raise _RunFailed(
                    f"No verdict: the {name} run {report.reason} (exit code {report.exit_code})."
                )
            return report

        terminal.say("drill 1 of 2: undisturbed", style="bold")
        undisturbed = train("undisturbed", lambda number: {DRILL: None})
        total_steps = _total_steps(undisturbed)
        try:
            plan = plan_preemptions(chosen, count, total_steps, workers)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        planned = ", ".join(str(preemption) for preemption in plan)
        terminal.say(f"drill 2 of 2: preempted: {planned} (of {total_steps}, --seed {chosen})", style="bold")
        preempted = train("preempted", lambda number: {DRILL: _drill_value(plan, number)})
        _check_preempted(preempted, plan)
        try:
            finals = [
                read_final_state(directories.of(name), workers) for name in ("undisturbed", "preempted")
            ]
        except NoFinalState as error:
            raise _RunFailed(f"No verdict: {error}") from None
        comparison = compare_states(finals[0], finals[1])
    print_times(terminal, [("undisturbed", undisturbed), ("preempted", preempted)])
    print_comparison(terminal, comparison)
    lost_seconds = preempted.seconds - undisturbed.seconds
    verdict = verdict_line(comparison, plan, steps_lost(preempted, total_steps), lost_seconds)
    if not comparison.identical:
        terminal.line(
            "Run it again with --keep DIR to look at both states." if keep is None else f"Kept: {keep}"
        )
    terminal.line(verdict, style="bold green" if comparison.identical else "bold red")
    return _IDENTICAL if comparison.identical else _DIFFERENT


def _drill_value(plan: Sequence[Preemption], incarnation: int) -> str | None:
    return plan[incarnation].to_json() if incarnation < len(plan) else None


def _total_steps(report: SupervisorReport) -> int:
    if report.count(Outcome.PREEMPTED) > 0:
        raise _RunFailed("No verdict: the undisturbed run was preempted from outside. Run the drill again.")
    steps = [status.step for status in report.incarnations[-1].statuses.values() if status.finished]
    if not steps:
        raise _RunFailed(
            "No verdict: the undisturbed run did not report a finished fit. Expected the script to pass a "
            "keras_preempt.PreemptionCallback to model.fit."
        )
    return max(steps)


def _check_preempted(report: SupervisorReport, plan: Sequence[Preemption]) -> None:
    happened = report.count(Outcome.PREEMPTED)
    if happened != len(plan):
        raise _RunFailed(
            f"No verdict: expected {len(plan)} preemptions. Received: {happened}. "
            "Does the script run all its training steps in one fit with a PreemptionCallback?"
        )
