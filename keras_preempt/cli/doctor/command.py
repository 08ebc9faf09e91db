"""``keras-preempt doctor``: finds what would lose work before the job is started, and says what to do about it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.doctor.finding import Findings, Printer
from keras_preempt.cli.doctor.loops import uses_handler
from keras_preempt.cli.doctor.meeting import Job, Meeting, job_of
from keras_preempt.cli.doctor.reasons import explain
from keras_preempt.cli.doctor.software import check_determinism, check_versions
from keras_preempt.cli.doctor.speed import check_save_fits
from keras_preempt.cli.doctor.storage import check_place, check_room, place_of, removed_afterwards
from keras_preempt.cli.doctor.surroundings import Grace, check_platform, check_sigterm, say_without_command
from keras_preempt.cli.doctor.together import meet_here
from keras_preempt.cli.doctor.trial import Trial
from keras_preempt.cli.doctor.watched import size_of
from keras_preempt.cli.options import (
    SIZE,
    checked_command,
    json_option,
    restart_code_option,
    seconds_option,
    store_of,
    workers_option,
)
from keras_preempt.cluster.scratch import scratch_directory
from keras_preempt.cluster.tf_config import VARIABLES

_PASS, _WOULD_LOSE_WORK = 0, 1
_COMMAND = "keras_preempt.doctor.command"


class _WithCommand(click.Command):
    """Takes what follows ``--`` as the command to try, wherever the other options stand."""

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


@dataclass
class _Options:
    """The options of the command line."""

    directory: str | None
    command: list[str]
    workers: int
    state_size: int | None
    grace: float | None
    max_to_keep: int
    staging_dir: str | None
    start_timeout: float
    wait: float
    restart_codes: tuple[int, ...]
    as_pid_1: bool


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
def doctor(ctx: click.Context, /, as_json: bool, **wishes: Any) -> int:
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

    DIR is what the callback is given: a path, or gs://bucket/prefix. On a cluster, start this instead of the job,
    on all workers: by TF_CONFIG, KERAS_DISTRIBUTION_*, Slurm's variables or JobSet's they look for each other.

    \b
    Exit codes:
      0  nothing that would lose work was found
      1  something would lose work; each PROBLEM says what, and how it is cured
      2  wrong usage
    """  # noqa: D301 - click's own mark for text that it must not wrap
    wanted = _Options(command=list(ctx.meta.get(_COMMAND, ())), **wishes)
    if wanted.command or wanted.workers < 1:
        checked_command(wanted.workers, tuple(wanted.command) or ("true",))
    try:
        job = job_of(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if job is not None and wanted.workers > 1:
        raise click.UsageError(
            f"Expected no --workers where {job.said_by} says that this is worker {job.index} of {job.workers}. "
            f"Received: --workers {wanted.workers}."
        )
    printer = Printer(as_json)
    findings = Findings(printer.finding)
    with contextlib.ExitStack() as stack:
        store = None
        if wanted.directory is not None:
            store = stack.enter_context(
                contextlib.closing(store_of(wanted.directory, staging_dir=wanted.staging_dir))
            )
        if store is not None and store.path is not None:
            stack.enter_context(_nothing_new(store.path))
        _Examination(wanted, job, store, printer, findings).examine()
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

    wanted: _Options
    job: Job | None
    store: Store | None
    printer: Printer
    findings: Findings

    def examine(self) -> None:
        wanted = self.wanted
        known = check_platform(
            self.findings, wanted.grace, wanted.workers if self.job is None else self.job.workers
        )
        check_sigterm(self.findings)
        check_versions(self.findings)
        check_determinism(self.findings, wanted.command)
        if known is None:
            return
        platform, grace = known
        name: str | None = secrets.token_hex(8)
        writable = self.store is not None and check_place(self.findings, self.store, platform)
        if self.store is None:
            self.findings.not_checked(
                "directory", "Pass DIR, the directory of the callback, to have it checked."
            )
        elif writable:
            name = self._meet(name)
        size = self._try(grace, name) if name and (writable or self.store is None) else 0
        if writable and self.store is not None:
            self._check_size(self.store, grace, size)

    def _meet(self, name: str | None) -> str | None:
        """Returns a name that all workers of the job share; None if they do not share the directory."""
        wanted, url = self.wanted, self.wanted.directory
        assert url is not None
        place = place_of(url, "meeting")
        if self.job is not None:
            with removed_afterwards(place) as store:
                meeting = Meeting(store, url, self.job, wanted.wait)
                return meeting.name if meeting.hold(self.findings) else None
        if wanted.workers > 1:
            with removed_afterwards(place):
                return name if meet_here(self.findings, wanted.workers, place, url, wanted.wait) else None
        self.findings.not_checked(
            "shared",
            "One worker. For a job of several, pass --workers N, or start this on all of them as the job is "
            "started.",
        )
        return name

    def _try(self, grace: Grace, name: str) -> int:
        """Runs the trial; returns the size of the checkpoint that it has saved, in bytes."""
        wanted, job = self.wanted, self.job
        if not wanted.command:
            say_without_command(self.findings)
            return 0
        with contextlib.ExitStack() as stack:
            if wanted.directory is None:
                root = str(
                    stack.enter_context(scratch_directory("doctor"))
                )  # Removed later if this is killed.
            else:
                root = place_of(wanted.directory, f"trial-{name}")
                stack.enter_context(removed_afterwards(root))
            trial = Trial(
                wanted.command,
                wanted.workers,
                root,
                grace,
                wanted.start_timeout,
                wanted.restart_codes,
                self.printer.worker_line,
                variables={} if job is None else {name: os.environ.get(name) for name in VARIABLES},
                as_pid_1=wanted.as_pid_1 or os.getpid() == 1,
                sends=job is None or job.index == job.workers - 1,
                uses_handler=uses_handler(wanted.command),
            )
            trial.run()
            size = trial.watched.size()
            if job is not None and wanted.directory is not None:
                # All workers share the place: it is removed when all have looked at it.
                place = place_of(wanted.directory, f"over-{name}")
                store = stack.enter_context(removed_afterwards(place))
                everybody = Job(job.index, job.workers, (), job.said_by)
                Meeting(store, wanted.directory, everybody, wanted.wait).hold(Findings())
            explain(trial, self.findings)
            return size

    def _check_size(self, store: Store, grace: Grace, of_trial: int) -> None:
        wanted = self.wanted
        assert wanted.directory is not None
        if wanted.state_size is not None:
            size, source = wanted.state_size, "--state-size"
        elif of_run := size_of(wanted.directory):
            size, source = of_run, "the largest checkpoint in DIR"
        elif of_trial:
            size, source = of_trial, "what the trial has saved"
        else:
            said = "Pass --state-size, such as 2GB, to have it checked before there is a checkpoint."
            self.findings.not_checked("room", said)
            self.findings.not_checked("save", said)
            return
        share = math.ceil(size / (self.job.workers if self.job is not None else 1))
        if check_room(self.findings, store, size, wanted.max_to_keep, share, wanted.staging_dir):
            place = place_of(wanted.directory, f"save-{secrets.token_hex(8)}")
            with (
                removed_afterwards(place, wanted.staging_dir) as own,
                contextlib.suppress(StoreUnavailable),
            ):
                check_save_fits(self.findings, own, share, grace, source)
        else:
            self.findings.not_checked("save", "How long a save takes: there is no room to try it.")
