"""``keras-preempt doctor``: finds what would lose work before the job is started, and says what to do about it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.staging import scratch_directory
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor.finding import Findings, Printer
from keras_preempt.cli.doctor.meeting import JobWorker, Meeting, job_of, meet_here
from keras_preempt.cli.doctor.reasons import explain_trial
from keras_preempt.cli.doctor.storage import (
    check_free_space,
    check_place,
    check_save_fits,
    place_of,
    removed_afterwards,
)
from keras_preempt.cli.doctor.surroundings import (
    check_determinism,
    check_platform,
    check_sigterm,
    check_versions,
)
from keras_preempt.cli.doctor.trial import Trial
from keras_preempt.cli.doctor.watched import largest_checkpoint, uses_handler
from keras_preempt.cli.options import (
    SIZE,
    checked_command,
    json_option,
    restart_code_option,
    seconds_option,
    store_of,
    workers_option,
)
from keras_preempt.cluster.tf_config import VARIABLES
from keras_preempt.notices.cloud import Grace

_PASS, _WOULD_LOSE_WORK = 0, 1
_COMMAND = "keras_preempt.doctor.command"


class _WithCommand(click.Command):
    """Takes what follows ``--`` as the command to try, wherever the other options are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            if at + 1 == len(args):
                raise click.UsageError("Expected a command after '--'. Received: none.", ctx)
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command(cls=_WithCommand)
@click.argument("directory", metavar="[DIR]", required=False)
@workers_option
@click.option(
    "--state-size",
    type=SIZE,
    metavar="SIZE",
    help="Bytes of a checkpoint, such as 2GB: weights and optimizer. "
    "Otherwise those of the run in DIR, or of the trial of COMMAND.",
)
@seconds_option("--grace", help="Time from a notice to the end.  [default: what the platform gives]")
@click.option(
    "--max-to-keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="K",
    help="As the callback gets it: how many checkpoints stay.",
)
@click.option(
    "--staging-dir", metavar="PATH", help="As the callback gets it: where files for a bucket are staged."
)
@seconds_option("--start-timeout", default=600.0, help="Time until COMMAND has done its first step.")
@seconds_option("--wait", default=60.0, help="Time for the workers of a job to find each other.")
@restart_code_option
@click.option(
    "--as-pid-1", is_flag=True, help="COMMAND will be process 1 of a container. Assumed where this one is."
)
@json_option("Print one JSON document, for programs; the rest goes to stderr.")
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, directory: str | None, workers: int, **values: Any) -> int:
    """Find out what would lose work, before the job is started.

    Looks at the platform, the versions, DIR (writable, shared, durable, fast, with room), and says how to correct
    each thing that is wrong. With COMMAND it starts the job's own command, waits until it trains, sends SIGTERM to the
    process that it has started, as the machine will, and checks whether it saves and leaves in time. COMMAND's
    checkpoints go to a place of the doctor in DIR, which is removed; those of a custom loop go where it puts them.

    \b
    Examples:
      keras-preempt doctor /shared/run
      keras-preempt doctor /shared/run --state-size 2GB --grace 15
      keras-preempt doctor /shared/run --workers 2 -- python train.py
      srun keras-preempt doctor /shared/run -- python train.py
      keras-preempt doctor gs://bucket/run --json -- sh -c 'exec python train.py'

    DIR is what the callback is given: a path, or a bucket's gs://, s3:// or az:// URL. On a cluster, start this instead
    of the job, on all workers: by TF_CONFIG, KERAS_DISTRIBUTION_*, Slurm's variables or JobSet's they look for each
    other.

    \b
    Exit codes:
      0  nothing that would lose work was found
      1  something would lose work; each PROBLEM says what, and how it is cured
      2  wrong usage
    """  # noqa: D301 - click's own mark for text that it must not wrap
    command = tuple(ctx.meta.get(_COMMAND, ()))
    if command or workers < 1:
        checked_command(workers, command or ("true",))
    try:
        job = job_of(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if job is not None and workers > 1:
        raise click.UsageError(
            f"Expected no --workers where {job.source} says that this is worker {job.index} of {job.workers}. "
            f"Received: --workers {workers}."
        )
    printer = Printer(as_json)
    findings = Findings(printer.finding)
    with contextlib.ExitStack() as stack:
        store = None
        if directory is not None:
            store = stack.enter_context(contextlib.closing(store_of(directory, values["staging_dir"])))
        if store is not None and store.path is not None:
            stack.enter_context(_nothing_new(store.path))
        _Examination(findings, printer, store, job, directory, command, workers, **values).examine()
    if as_json:
        click.echo(json.dumps(findings.document(), indent=2))
    else:
        printer.verdict(findings)
    return _WOULD_LOSE_WORK if findings.would_lose_work else _PASS


@contextlib.contextmanager
def _nothing_new(folder: Path) -> Iterator[None]:
    """Removes the folder and those above it afterwards, if they did not exist before and nobody else uses them."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


@dataclass
class _Examination:
    """Runs all checks in order; one may need what another has found out."""

    findings: Findings
    printer: Printer
    store: Store | None
    job: JobWorker | None
    directory: str | None
    command: Sequence[str]
    workers: int
    state_size: int | None
    grace: float | None
    max_to_keep: int
    staging_dir: str | None
    start_timeout: float
    wait: float
    restart_codes: tuple[int, ...]
    as_pid_1: bool

    def examine(self) -> None:
        findings = self.findings
        known = check_platform(findings, self.grace, self.workers if self.job is None else self.job.workers)
        check_sigterm(findings)
        check_versions(findings)
        check_determinism(findings, self.command)
        if known is None:
            return
        platform, grace = known
        if self.store is None or self.directory is None:
            findings.not_checked("directory", "Pass DIR, the directory of the callback, to have it checked.")
            self._try(grace, secrets.token_hex(8))
        elif check_place(findings, self.store, platform):
            name = self._meet(self.directory)
            size = 0 if name is None else self._try(grace, name)
            self._check_size(self.store, self.directory, grace, size)

    def _meet(self, url: str) -> str | None:
        """Returns a name that all workers of the job share; None if they do not share the directory."""
        name, patience = secrets.token_hex(8), self.wait
        place = place_of(url, "meeting")
        if self.job is not None:
            with removed_afterwards(place) as store:
                meeting = Meeting(store, url, self.job, patience)
                return meeting.name if meeting.hold(self.findings) else None
        if self.workers > 1:
            with removed_afterwards(place):
                return name if meet_here(self.findings, self.workers, place, url, patience) else None
        self.findings.not_checked(
            "shared",
            "One worker. For a job of several, pass --workers N, or start this on all of them as the job is "
            "started.",
        )
        return name

    def _try(self, grace: Grace, name: str) -> int:
        """Runs the trial; returns the size of the checkpoint that it has saved, in bytes."""
        job = self.job
        if not self.command:
            self.findings.not_checked(
                "signal path",
                "Whether SIGTERM reaches the training process and it saves in time. Add the job's own command: "
                "keras-preempt doctor DIR -- COMMAND.",
            )
            return 0
        with contextlib.ExitStack() as stack:
            if self.directory is None:  # A later command removes it if this one is killed.
                root = str(stack.enter_context(scratch_directory("doctor")))
            else:
                root = place_of(self.directory, f"trial-{name}")
                stack.enter_context(removed_afterwards(root))
            trial = Trial(
                self.command,
                self.workers,
                root,
                grace,
                self.start_timeout,
                self.restart_codes,
                self.printer.worker_line,
                variables={} if job is None else {name: os.environ.get(name) for name in VARIABLES},
                as_pid_1=self.as_pid_1 or os.getpid() == 1,
                sends=job is None or job.index == job.workers - 1,
                uses_handler=uses_handler(self.command),
            )
            trial.run()
            size = trial.watched.size()
            if job is not None and self.directory is not None:
                # All workers share the place: it is removed when all have looked at it.
                place = place_of(self.directory, f"over-{name}")
                store = stack.enter_context(removed_afterwards(place))
                without_ports = dataclasses.replace(job, addresses=())
                Meeting(store, self.directory, without_ports, self.wait).hold(Findings())
            explain_trial(trial, self.findings)
            return size

    def _check_size(self, store: Store, directory: str, grace: Grace, of_trial: int) -> None:
        if self.state_size is not None:
            size, source = self.state_size, "--state-size"
        elif of_run := largest_checkpoint(directory):
            size, source = of_run, "the largest checkpoint in DIR"
        elif of_trial:
            size, source = of_trial, "what the trial has saved"
        else:
            for check in ("room", "save"):
                self.findings.not_checked(
                    check, "Pass --state-size, such as 2GB, to have it checked before there is a checkpoint."
                )
            return
        share = math.ceil(size / (self.job.workers if self.job is not None else 1))
        if check_free_space(self.findings, store, size, self.max_to_keep, share, self.staging_dir):
            place = place_of(directory, f"save-{secrets.token_hex(8)}")
            with (
                removed_afterwards(place, self.staging_dir) as own,
                contextlib.suppress(StoreUnavailable),
            ):
                check_save_fits(self.findings, own, share, grace, source)
        else:
            self.findings.not_checked("save", "How long a save takes: there is no room to try it.")
