"""``keras-preempt drill``: trains undisturbed, then with real preemptions, and compares the final states."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.cli.drill.any_trainer import FilesDrill, FilesTrainer, check_patterns
from keras_preempt.cli.drill.cause import likely_causes, uncovered
from keras_preempt.cli.drill.comparison import compared, find_parting, repeats
from keras_preempt.cli.drill.directories import (
    MIXES,
    WorkingDirectories,
    drill_bucket,
    run_directories,
)
from keras_preempt.cli.drill.plan import BY_OUTPUT, Moment, parse_moments, plan_preemptions
from keras_preempt.cli.drill.result import DrillResult, print_result, print_times
from keras_preempt.cli.drill.runs import Trainer, shape_of, substitutions
from keras_preempt.cli.options import (
    checked_command,
    command_argument,
    json_option,
    restart_code_option,
    restart_policy,
    seconds_option,
    standby_option,
    workers_option,
)
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import RestartPolicy
from keras_preempt.cluster.standby import ImportNotes
from keras_preempt.notices.signals import parse_signals
from keras_preempt.training.save.memory_options import memory_options
from keras_preempt.training.save.schedule import schedule_from_text

_IDENTICAL, _DIFFERENT = 0, 1

_OTHERS_END = 30.0
"""Seconds that the other workers have to end by themselves when one was killed: they may still be saving."""

_SAID = 120.0
"""Seconds that a worker has to end after it has reported its exit status. Python ends it within 30; what comes before
that is the script's own, such as an `exit_fn` that uploads something."""


@dataclass
class _Options:
    workers: int
    count: int | None
    seed: int | None
    moments: Sequence[Moment]
    state: tuple[str, ...]
    signal_name: str
    kill: bool
    grace: float | None
    save_every: str | None
    memory_every: str | None
    gcs_faults: str | None
    s3_faults: str | None
    azure_faults: str | None
    isolate: bool
    twice: bool
    standby: bool
    timeout: float
    keep: str | None
    restart_codes: tuple[int, ...]
    command: tuple[str, ...]

    @property
    def drawn(self) -> int:
        """How many preemptions are drawn."""
        return self.count or (0 if self.moments else 1)

    @property
    def faults(self) -> dict[str, str]:
        """The mixes of faults that are asked for, by the services to whose buckets they happen."""
        asked = {"gcs": self.gcs_faults, "s3": self.s3_faults, "azure": self.azure_faults}
        return {service: mix for service, mix in asked.items() if mix is not None}


@click.command(context_settings={"allow_interspersed_args": False})
@workers_option
@click.option(
    "--preempt",
    "count",
    type=click.IntRange(min=1),
    metavar="K",
    help="Preemptions at random steps, each in an incarnation of its own.  [default: 1, or 0 with --at]",
)
@click.option("--seed", type=int, metavar="S", help="Chooses steps and workers; drawn and printed if absent.")
@click.option(
    "--at",
    "moments",
    multiple=True,
    callback=parse_moments,
    metavar="MOMENT",
    help="One more preemption, at a moment of your own: step:N (before training step N, counted from 0); "
    "validation or validation:K (in the middle of the K-th); saving or saving:K (while the K-th checkpoint of "
    "save_every is written); leaving or leaving:N (at step N, and again while the answer to it is saved). "
    "With --state: line:TEXT (when the start prints a line with it) or second:N of the start. "
    "Can be given more than once.",
)
@click.option(
    "--state",
    multiple=True,
    metavar="GLOB",
    help="For any trainer that resumes by itself, without a PreemptionCallback: compare the files that it leaves, such "
    "as 'out/*.safetensors': tensors of safetensors, .npz, .npy, .pt, .pth, .keras and .h5, anything else byte for "
    "byte. Can be given more than once.",
)
@click.option(
    "--signal",
    "signal_name",
    default="SIGTERM",
    show_default=True,
    metavar="NAME",
    help="The signal that is the notice. The script has to listen for it: TerminationConfig(signals=...).",
)
@click.option(
    "--kill",
    is_flag=True,
    help="SIGKILL without a notice: training continues from the last checkpoint of save_every. With --at leaving, "
    "after the notice.",
)
@seconds_option(
    "--grace",
    help="Grace period: a first save at the notice, training goes on, a last save before the end. The drill kills "
    "the worker when it is over.",
)
@click.option(
    "--save-every",
    metavar="WHEN",
    help="Replaces save_every of the script: a number of steps, epoch, or a time such as 10min.",
)
@click.option(
    "--memory-every",
    metavar="WHEN",
    help="Replaces memory_every of the script: auto, a number of steps, or a time such as 10s. With --kill and several "
    "workers, what the killed one has in memory (in /dev/shm) goes with it.",
)
@click.option(
    "--gcs-faults",
    type=click.Choice(list(MIXES)),
    metavar="MIX",
    help=f"Keep the checkpoints in a fake bucket (gs://) of the drill's own, a tenth of whose requests fails in the "
    f"preempted run: {', '.join(MIXES)}.",
)
@click.option(
    "--s3-faults", type=click.Choice(list(MIXES)), metavar="MIX", help="The same with a bucket of S3 (s3://)."
)
@click.option(
    "--azure-faults",
    type=click.Choice(list(MIXES)),
    metavar="MIX",
    help="The same with a container of Azure (az://).",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Give each run a copy of the working directory of its own, for scripts that write files into it.",
)
@click.option(
    "--twice",
    is_flag=True,
    help="If the results differ, train undisturbed once more, to tell whether the script repeats itself at all.",
)
@standby_option
@seconds_option("--timeout", default=3600.0, help="Time that one incarnation may take.")
@click.option(
    "--keep",
    metavar="DIR",
    help="Keep both runs' checkpoints in DIR: a path, or a bucket's gs://, s3:// or az:// URL; new or empty. Else "
    "they are in a temporary directory and removed.",
)
@json_option(
    "Write the verdict to standard output as one JSON object, and everything else to standard error."
)
@restart_code_option
@command_argument
def drill(as_json: bool, **values: Any) -> int:
    """Prove that preemptions lose nothing: same script, same bits.

    Trains once undisturbed, then again with real preemptions: a worker gets SIGTERM at a random step or at a
    moment of your choice, the cluster saves, leaves and is started again. Then the two final states are compared
    byte by byte: weights, optimizer slots, seeds, metrics, and the state of callbacks with History. If they
    differ, it says which tensors, from which step on, and the likely cause.

    \b
    Examples:
      keras-preempt drill -- python train.py                       once, at a random step
      keras-preempt drill --workers 2 --preempt 3 --seed 7 -- python train.py
      keras-preempt drill --at step:100 --at validation -- python train.py
      keras-preempt drill --kill --save-every 50 -- python train.py
      keras-preempt drill --at saving --kill --save-every 50 -- python train.py
      keras-preempt drill --grace 30 --gcs-faults all -- python train.py
      keras-preempt drill --state 'out/*.pt' --at 'line:epoch 2' -- python other.py

    COMMAND is your own script, unchanged. It has to be repeatable: fixed seeds, a fixed number of steps, fits with
    a PreemptionCallback. Each directory of such a callback is replaced by a fresh one for each run; whatever else
    the script writes, it writes in both runs, the second over the first unless --isolate is given.

    The signals come from outside, as from a machine: each is sent to the process that was started for the worker,
    when that worker says that the moment is there.

    \b
    Exit codes:
      0  identical
      1  different: what differs, from which step on, and the likely cause
      2  wrong usage
      3  a run failed or was stopped, or a file cannot be read, so there is no verdict
      4  the script's run has no such moment as --at or --preempt asks for
    """  # noqa: D301 - click's own mark for text that it must not wrap
    options = _Options(**values)
    arguments = checked_command(options.workers, options.command)
    _check_combinations(options)
    policy = restart_policy(
        restart_codes=options.restart_codes,
        max_restarts_without_progress=options.drawn + len(options.moments),
        failure_grace=_OTHERS_END if options.kill or options.grace else RestartPolicy.failure_grace,
        incarnation_timeout=options.timeout,
        said_grace=_SAID,
    )
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    terminal = Terminal(sys.stderr if as_json else None, job=True)
    result = DrillResult(options.workers, seed)
    try:
        if options.state:
            _files_drill(options, arguments, policy, terminal).run(result)
        else:
            _drill_fits(options, arguments, policy, terminal, result)
    except click.ClickException as error:
        if as_json and not isinstance(error, click.UsageError):
            Terminal().line(result.to_json(error.exit_code, why_none=error.message))
        raise
    status = _IDENTICAL if result.identical else _DIFFERENT
    if as_json:
        Terminal().line(result.to_json(status))
    return status


def _drill_fits(
    options: _Options, arguments: list[str], policy: RestartPolicy, terminal: Terminal, result: DrillResult
) -> None:
    """Drills a script whose fits have a PreemptionCallback."""
    seed, notice = result.seed, _checked_signal(options.signal_name)
    with contextlib.ExitStack() as stack:
        bucket = None
        for service, mix in options.faults.items():
            bucket = stack.enter_context(drill_bucket(service, mix, seed))
        directories = stack.enter_context(run_directories(options.keep, bucket))
        scratch = stack.enter_context(scratch_directory("drill")).resolve()
        trainer = Trainer(
            options.workers,
            arguments,
            policy,
            terminal,
            scratch,
            options.save_every,
            options.memory_every,
            options.grace,
            ImportNotes() if options.standby else None,
        )
        places = WorkingDirectories(scratch, directories.path, isolate=options.isolate)
        terminal.say("drill 1 of 2: undisturbed", style="bold")
        undisturbed = trainer.train(
            "undisturbed", directories.of("undisturbed"), cwd=places.of("undisturbed")
        )
        places.report_written(terminal.say)
        result.shape = shape = shape_of(undisturbed)
        result.record = undisturbed.record
        result.plan = plan = plan_preemptions(
            seed, options.drawn, shape, options.workers, options.moments, notice, options.kill
        )
        planned = f"{', '.join(map(str, plan))} (of {shape.total_steps}, --seed {seed})"
        terminal.say(f"drill 2 of 2: preempted: {planned}", style="bold")
        if bucket is not None:
            bucket.begin_faults()
        result.preempted = preempted = trainer.train(
            "preempted", directories.of("preempted"), plan, places.of("preempted"), undisturbed
        )
        if bucket is not None:
            bucket.end_faults()
        result.killed = preempted.killed
        result.comparison = compared(undisturbed, preempted, options.workers)
        result.parting = parting = find_parting(undisturbed.record, preempted.record)
        repeatable = None
        if options.twice and not result.identical and (parting is None or parting.incarnation > 0):
            terminal.say("drill, once more: undisturbed again", style="bold")
            again = trainer.train("repeated", directories.of("repeated"), cwd=places.of("repeated"))
            repeatable = repeats(undisturbed, again, options.workers)
        substituted = [] if result.identical else substitutions(preempted)
    result.seconds_lost = preempted.report.seconds - undisturbed.report.seconds
    if result.identical:
        result.uncovered = uncovered(undisturbed.record, len(plan))
    else:
        result.causes = likely_causes(parting, undisturbed.record, repeatable, substituted, places.written)
    print_times(terminal, [undisturbed, preempted])
    print_result(terminal, result, "" if bucket is None else bucket.summary(), options.keep)


def _files_drill(
    options: _Options, arguments: list[str], policy: RestartPolicy, terminal: Terminal
) -> FilesDrill:
    check_patterns(options.state)
    # One start at a time, and nobody ends one that saves for long: it does not say that it listens.
    policy = replace(policy, max_restarts_without_progress=0, unheard_grace=options.timeout)
    trainer = FilesTrainer(options.workers, arguments, policy, terminal, options.state, options.grace)
    notice = _checked_signal(options.signal_name)
    wanted = options.moments or options.drawn
    return FilesDrill(trainer, wanted, notice, options.kill, options.keep, options.twice)


def _checked_signal(name: str) -> str:
    """Returns the full name of the signal that serves as the notice, which a script has to be able to listen for."""
    if name.upper() in ("KILL", "SIGKILL", "9"):
        raise click.UsageError(
            "Expected --signal to be one that a script can listen for. Received: SIGKILL. Use --kill."
        )
    try:
        (number,) = parse_signals((name,))
    except ValueError as error:
        raise click.UsageError(f"--signal: {error}") from None
    return number.name


def _check_combinations(options: _Options) -> None:
    """Refuses a signal that is none, options that exclude each other, and a schedule of saves that cannot be read."""
    _checked_signal(options.signal_name)
    _check_moments(options)
    if options.kill and options.grace is not None:
        raise click.UsageError(
            "Expected --kill or --grace. Received: both, and a kill comes without a grace period. Leave one out."
        )
    given = [f"--{service}-faults" for service in options.faults]
    if len(given) > 1:
        raise click.UsageError(
            f"Expected faults in one bucket. Received: {' and '.join(given)}. Leave all but one out."
        )
    if given and options.keep is not None:
        raise click.UsageError(
            f"Expected {given[0]} or --keep. Received: both, and the bucket with faults ends with the drill. "
            "Leave one out."
        )
    if options.save_every is not None:
        try:
            schedule_from_text(options.save_every)
        except ValueError as error:
            raise click.UsageError(f"--save-every: {error}") from None
    if options.memory_every is not None:
        try:
            memory_options(options.memory_every)
        except ValueError as error:
            raise click.UsageError(f"--memory-every: {error}") from None


def _check_moments(options: _Options) -> None:
    """Refuses moments and options that mean nothing with --state, or only with it."""
    strange = [str(moment) for moment in options.moments if (moment.kind in BY_OUTPUT) != bool(options.state)]
    if strange and options.state:
        raise click.UsageError(
            f"Expected --at line:TEXT or second:N with --state, of a script that reports nothing else. Received: "
            f"{', '.join(strange)}."
        )
    if strange:
        raise click.UsageError(
            f"Expected --state with --at {strange[0]}, a moment of any trainer. Received: none. Name the files that it "
            "leaves, or choose a moment of training, such as step:N."
        )
    if not options.state:
        return
    if options.count and options.moments:
        raise click.UsageError(
            "Expected --preempt or --at with --state. Received: both. Name every moment, or draw all."
        )
    given = {
        "--save-every": options.save_every,
        "--memory-every": options.memory_every,
        "--standby": options.standby,
        **{f"--{service}-faults": mix for service, mix in options.faults.items()},
    }
    if unfit := [name for name, value in given.items() if value]:
        raise click.UsageError(
            f"Expected no {unfit[0]} with --state: it is for scripts with a PreemptionCallback. Leave one out."
        )
