"""``keras-preempt inspect``: shows the checkpoints of a directory, why they were made, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.cli.checkpoint_summary import (
    CheckpointSummary,
    LeftOver,
    RunSummary,
    checkpoints_of,
    left_over_in,
    run_of,
    utc,
    with_notices,
)
from keras_preempt.cli.inspect_compare import compare_checkpoints, print_differences
from keras_preempt.cli.options import directory_argument, json_option, opened_run
from keras_preempt.cli.terminal import Terminal, shown_size
from keras_preempt.process.words import counted, some

_GOOD, _NOT_GOOD = 0, 1


@click.command()
@directory_argument
@click.option(
    "--verify", is_flag=True, help="Read every byte of every checkpoint and compare it with its checksum."
)
@click.option(
    "--compare",
    nargs=2,
    metavar="A B",
    help="Compare two checkpoints tensor by tensor, bit by bit. A and B are steps of this run, 'newest', or "
    "OTHER_DIR or OTHER_DIR@STEP of another run.",
)
@json_option("Print everything as JSON, for programs.")
def inspect(directory: str, verify: bool, compare: tuple[str, str] | None, as_json: bool) -> int:
    """Show what a run has saved: its checkpoints, why each was made, and what was left half-written.

    DIR is the directory that was given to PreemptionCallback: a path, or gs://bucket/prefix. Nothing is ever written,
    so the permission to read is enough, and the run may be going on meanwhile. Epochs and batches count from 0, as in
    callbacks; the batch is the one that comes next. Times are UTC. Of the workers, "1/2" have written the weights.
    A checkpoint was made because the job was preempted (its notices stand below the table), periodic because of
    save_every, requested by keras-preempt save, interrupted by Ctrl-C, at a deadline because a grace period was used
    up, or because training has finished.

    \b
    Examples:
      keras-preempt inspect runs/1
      keras-preempt inspect gs://bucket/runs/1 --verify
      keras-preempt inspect runs/1 --compare 1200 newest
      keras-preempt inspect drilled/preempted --compare newest drilled/undisturbed

    \b
    Exit codes:
      0  all is well; with --compare: the two are identical
      1  a checkpoint is damaged or incomplete; with --compare: the two differ
      2  wrong usage
      3  DIR cannot be read, or is not the directory of a run
    """  # noqa: D301 - click's own mark for text that it must not wrap
    if compare and verify:
        raise click.UsageError(
            "Expected --verify or --compare. Received: both. Comparing verifies what it reads."
        )
    terminal = Terminal()
    with opened_run(directory) as (store, run):
        if compare:
            try:
                compared = compare_checkpoints(store, *compare)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            if as_json:
                _print_json(compared.to_json())
            else:
                print_differences(terminal, compared)
            return _GOOD if compared.identical else _NOT_GOOD
        summary = run_of(store, run)
        checkpoints = with_notices(store, checkpoints_of(store, verified=verify, tell=_progress))
        left_over = left_over_in(store)
    if as_json:
        _print_json(
            {
                "run": summary.to_json(),
                "checkpoints": [checkpoint.to_json() for checkpoint in checkpoints],
                "left_over": [asdict(attempt) for attempt in left_over],
            }
        )
    else:
        print_run(terminal, summary)
        print_checkpoints(terminal, checkpoints)
        print_left_over(terminal, left_over)
    return _NOT_GOOD if any(checkpoint.problem for checkpoint in checkpoints) else _GOOD


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2))


_NAMED = 3  # the most notices or workers that a line names


def where(checkpoint: CheckpointSummary) -> tuple[str, str]:
    """Returns the epoch of a checkpoint, and the place in it."""
    epoch = "?" if checkpoint.epoch is None else str(checkpoint.epoch)
    batch = "?" if checkpoint.batch is None else str(checkpoint.batch)
    places = {"train": batch, "validation": f"val {batch}", "epoch": "begin", "end": "end"}
    return epoch, places.get(checkpoint.phase or "", "?")


def print_run(terminal: Terminal, run: RunSummary) -> None:
    """Prints what is known of the run."""
    terminal.line(
        f"{one_line(run.directory)}: run {one_line(run.run_id)[:32]} (format {run.format})", style="bold"
    )
    terminal.line(
        f"  model with {run.variables} weights, {run.parameters:,} parameters; optimizer {one_line(run.optimizer)}"
    )
    if run.setup is not None:
        batch, batches = run.setup.get("global_batch"), run.setup.get("batches")
        counts = [(run.setup.get(f"{noun}s"), noun) for noun in ("worker", "replica")]
        parts = [counted(count, noun) for count, noun in counts if isinstance(count, int)]
        parts += [f"{counted(batch, 'sample')} a step"] if batch else []
        parts += [f"{counted(batches, 'step')} an epoch"] if batches else []
        terminal.line(f"  begun on {', '.join(parts)}")
    last = utc(run.last_start_at)
    since = f", the last time at {last.replace('T', ' ').rstrip('Z')}" if last else ""
    terminal.line(f"  started {counted(run.starts, 'time')}{since}")
    terminal.line("")


def print_checkpoints(terminal: Terminal, checkpoints: Sequence[CheckpointSummary]) -> None:
    """Prints a table of the checkpoints, and below it notes on some of them."""
    if not checkpoints:
        terminal.line("No checkpoint yet.")
        return
    columns = ["step", "epoch", "batch", "saved (UTC)", "size", "writers", "why", "verified"]
    terminal.table(
        "Checkpoints; a restart uses the first that is whole", columns, list(map(_row, checkpoints))
    )
    for checkpoint in checkpoints:
        if checkpoint.notices:
            terminal.line(f"  step {checkpoint.step}: {_some(checkpoint.notices)}")
        if checkpoint.missing:
            terminal.line(
                f"  step {checkpoint.step}: not exact for {_members(checkpoint.missing)}, killed before the own part "
                "was written",
                style="yellow",
            )
        if checkpoint.problem:
            terminal.line(f"  {checkpoint.directory}: {one_line(checkpoint.problem)}", style="red")
    good = [checkpoint for checkpoint in checkpoints if checkpoint.problem is None]
    if any(checkpoint.verified is None for checkpoint in good):
        terminal.line("Only manifests and names were read: --verify reads every byte.")
    if not good:
        terminal.line("None of them can be restored.", style="bold red")


def print_left_over(terminal: Terminal, left_over: Sequence[LeftOver]) -> None:
    """Prints the attempts that were not committed."""
    if not left_over:
        return
    rows = [
        [
            attempt.directory,
            str(attempt.files),
            shown_size(attempt.size),
            "abandoned" if attempt.abandoned else "perhaps being written",
        ]
        for attempt in left_over
    ]
    terminal.line("")
    terminal.table("Attempts that were not committed", ["folder", "files", "size", "state"], rows)
    if any(attempt.abandoned for attempt in left_over):
        terminal.line("The job removes the abandoned ones when it goes on; so does keras-preempt clean.")


def _row(checkpoint: CheckpointSummary) -> list[str]:
    saved = utc(checkpoint.saved_at) or "?"
    verified = {None: "-", True: "yes", False: "NO"}[checkpoint.verified]
    return [
        str(checkpoint.step),
        *where(checkpoint),
        saved.replace("T", " ")[: -len(":00Z")],
        shown_size(checkpoint.size),
        "?" if checkpoint.workers is None else f"{len(checkpoint.writers)}/{checkpoint.workers}",
        "?" if checkpoint.kind is None else one_line(checkpoint.kind)[:20],
        verified,
    ]


def _members(members: Sequence[int]) -> str:
    return _some([f"worker {member}" for member in members])


def _some(items: Sequence[str]) -> str:
    return some(list(map(one_line, items)), _NAMED)
