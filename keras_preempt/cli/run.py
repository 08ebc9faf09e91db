"""``keras-preempt run``: trains in local worker processes, and restarts them after a preemption."""

from __future__ import annotations

from typing import Any

import click

from keras_preempt.cli.options import (
    DURATION,
    HANG,
    checked_command,
    command_argument,
    restart_code_option,
    restart_policy,
    seconds_option,
    standby_option,
    workers_option,
)
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy, Supervisor


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@workers_option
@restart_code_option
@click.option(
    "--max-restarts-without-progress",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="R",
    help="Restarts in a row that may each end without a later step saved; then it gives up.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="M",
    help="Crashes after which the cluster is started again all the same.",
)
@seconds_option(
    "--failure-grace",
    default=RestartPolicy.failure_grace,
    zero=True,
    help="Time for the other workers to end by themselves once one has crashed.",
)
@seconds_option(
    "--unheard-grace",
    default=RestartPolicy.unheard_grace,
    zero=True,
    help="Time after SIGTERM for a worker that does not listen for notices; then it is killed.",
)
@click.option(
    "--time-limit",
    type=DURATION,
    metavar="TIME",
    help="How long the whole job may take, such as 11h50m: the workers save and leave before that.",
)
@click.option(
    "--hang",
    type=HANG,
    default="off",
    show_default=True,
    metavar="auto|TIME|off",
    help="When a worker that does not come on hangs: after a time such as 10min; auto learns it from what it sees.",
)
@standby_option
@command_argument
def run(workers: int, command: tuple[str, ...], standby: bool, **rules: Any) -> int:
    """Train with N local workers; restart them after a preemption.

    Each worker runs COMMAND with its own TF_CONFIG and KERAS_DISTRIBUTION_* variables, of which its backend takes what
    it needs; its output is shown after its prefix, such as [w0].

    \b
    Example:
      keras-preempt run --workers 2 -- python train.py --epochs 10

    When a worker leaves with a restart code (or SIGTERM ends it before the callback listens), that is a
    preemption: the WHOLE cluster is started again, since no backend takes a single worker back. Any other
    exit code is a failure; the other workers then get a moment to end by themselves and are terminated.
    Where a worker was killed without a notice (SIGKILL) and the others leave with 69, which says that they
    have lost it, the cluster is started again if there is a checkpoint.

    SIGTERM, and SIGHUP when the terminal is closed, are passed on to the training process of every worker as
    SIGTERM, also behind a shell script; they save and leave, and nothing is started again after that. So do SIGUSR1 and
    SIGUSR2, which workers that listen for them get as they are. A worker that does not listen yet, and does
    not end either (as after jax.distributed.initialize), is killed after --unheard-grace. Ctrl-C is passed on as it
    is: they save and leave, too; a second one kills them. Nothing that a worker has started outlives this command,
    even if it is killed itself. If standard output cannot be written, the output is dropped and the job goes on.

    Before --time-limit is over, counted from the start of this command, or the allocation of a scheduler that says when
    that is (Slurm), the workers save and leave, and nothing is started again. A worker that runs beyond the limit gets
    SIGTERM, and is killed after --failure-grace.

    With --hang, workers that do not come on (no step, and nothing else that the callback sees) for too long are
    ended, and the cluster is started again; before that the log gets their positions and the stacks of all threads.
    A time holds from the start of the script to its end. With auto it is ten times the slowest one seen, and at least 5
    minutes for a step of training or validation once one was seen, 30 minutes for a start, a first step, the end of
    an epoch, a save; there is none for what the script does after its fit.

    \b
    Exit codes:
      0    training finished
      75   this command was told to stop, or its time is over, and a checkpoint is committed: start it
           again (the worker's own restart code, if --restart-code names others)
      74   the same, and what was trained could not be saved
      69   workers have lost each other, before there was a checkpoint or when this command was
           told to stop: start it again, a limited number of times
      124  a worker ran beyond --time-limit, and was killed
      1    it gave up: several restarts in a row without progress
      2    wrong usage
      130  stopped by Ctrl-C
      143  stopped by SIGTERM before training had begun: nothing saved, nothing lost
           (129: SIGHUP, 138: SIGUSR1, 140: SIGUSR2)
      else the exit code of the worker that failed first; 128 + n if signal n ended it
    """  # noqa: D301 - click's own mark for text that it must not wrap
    arguments = checked_command(workers, command)
    policy = restart_policy(**rules)
    terminal = Terminal(job=True)
    supervisor = Supervisor(
        workers,
        arguments,
        policy=policy,
        say=terminal.say,
        log=terminal.worker_line,
        stopping=terminal.hurry,
        standby=standby,
    )
    report = supervisor.run(last=bool(click.get_current_context().obj))
    terminal.say(report.summary)
    return report.exit_code
