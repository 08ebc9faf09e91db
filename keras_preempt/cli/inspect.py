"""``keras-preempt inspect``: shows the checkpoints of a directory, why they were made, and whether they are whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
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
from keras_preempt.cli.compare import ComparedTensor, SavedState, compare_json, compare_tensors
from keras_preempt.cli.options import directory_argument, json_option, opened_run
from keras_preempt.cli.terminal import Terminal, shown_size
from keras_preempt.process.words import counted, some
from keras_preempt.report.progress import transfer

_GOOD, _NOT_GOOD = 0, 1
_NEWEST = "newest"
_MOST_NAMED = 3  # notices or workers in one line
_MOST_PLACES = 10  # differences of other state that are listed


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

    DIR is the directory that was given to PreemptionCallback: a path, or a bucket's gs://, s3:// or az:// URL. Nothing
    is ever written, so the permission to read is enough, and the run may be going on meanwhile. Epochs and batches
    count from 0, as in callbacks; the batch is the one that comes next. Times are UTC. Of the workers, "1/2" have
    written the weights. A checkpoint was made because the job was preempted (its notices stand below the table),
    periodic because of save_every, requested by keras-preempt save, interrupted by Ctrl-C, at a deadline because a
    grace period was used up, or because training has finished.

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
                sides = [_read(store, which) for which in compare]
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            names, (one, other) = [where for where, _ in sides], [state for _, state in sides]
            tensors = compare_tensors(one.tensors, other.tensors, ("A", "B"))
            places = compare_json(one.state, other.state, ("A", "B"))
            identical = not places and all(tensor.difference is None for tensor in tensors)
            if as_json:
                fields = {"identical": identical, "first": names[0], "second": names[1]}
                _print_json({**fields, "tensors": [asdict(tensor) for tensor in tensors], "state": places})
            else:
                _print_differences(terminal, names, tensors, places)
            return _GOOD if identical else _NOT_GOOD
        summary = run_of(store, run)
        checkpoints = with_notices(
            store, checkpoints_of(store, verified=verify, say=partial(click.echo, err=True))
        )
        left_over = left_over_in(store)
    if as_json:
        _print_json(
            {
                "run": {**asdict(summary), "last_start_at_utc": utc(summary.last_start_at)},
                "checkpoints": [{**asdict(each), "saved_at_utc": utc(each.saved_at)} for each in checkpoints],
                "left_over": [asdict(attempt) for attempt in left_over],
            }
        )
    else:
        _print_run(terminal, summary)
        _print_checkpoints(terminal, checkpoints)
        _print_left_over(terminal, left_over)
    return _NOT_GOOD if any(checkpoint.problem for checkpoint in checkpoints) else _GOOD


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2))


def _print_run(terminal: Terminal, run: RunSummary) -> None:
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


def _print_checkpoints(terminal: Terminal, checkpoints: Sequence[CheckpointSummary]) -> None:
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
            workers = _some([f"worker {each}" for each in checkpoint.missing])
            terminal.line(
                f"  step {checkpoint.step}: not exact for {workers}, killed before the own part was written",
                style="yellow",
            )
        if checkpoint.problem:
            terminal.line(f"  {checkpoint.directory}: {one_line(checkpoint.problem)}", style="red")
    good = [checkpoint for checkpoint in checkpoints if checkpoint.problem is None]
    if any(checkpoint.verified is None for checkpoint in good):
        terminal.line("Only manifests and names were read: --verify reads every byte.")
    if not good:
        terminal.line("None of them can be restored.", style="bold red")


def _print_left_over(terminal: Terminal, left_over: Sequence[LeftOver]) -> None:
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
    batch = "?" if checkpoint.batch is None else str(checkpoint.batch)
    places = {"train": batch, "validation": f"val {batch}", "epoch": "begin", "end": "end"}
    return [
        str(checkpoint.step),
        "?" if checkpoint.epoch is None else str(checkpoint.epoch),
        places.get(checkpoint.phase or "", "?"),
        saved.replace("T", " ")[: -len(":00Z")],
        shown_size(checkpoint.size),
        "?" if checkpoint.workers is None else f"{len(checkpoint.writers)}/{checkpoint.workers}",
        "?" if checkpoint.kind is None else one_line(checkpoint.kind)[:20],
        {None: "-", True: "yes", False: "NO"}[checkpoint.verified],
    ]


def _some(items: Sequence[str]) -> str:
    return some(list(map(one_line, items)), _MOST_NAMED)


def _read(store: Store, which: str) -> tuple[str, SavedState]:
    """Reads and verifies a step, "newest", or another run's DIR or DIR@STEP; also says where it lies."""
    if which == _NEWEST or which.isdecimal():
        info, saved = read_chosen(
            store,
            None if which == _NEWEST else int(which),
            lambda info: SavedState.read(store, info, transfer),
        )
        return f"{store.url}/{info.directory}", saved
    directory, _, step = which.rpartition("@")
    if not directory or not (step == _NEWEST or step.isdecimal()):
        directory, step = which, _NEWEST
    with contextlib.closing(open_store(directory)) as other:
        read_run(other)
        return _read(other, step)


def _print_differences(
    terminal: Terminal, names: Sequence[str], tensors: Sequence[ComparedTensor], places: Sequence[str]
) -> None:
    """Prints a row for each tensor, then what else differs, then the verdict."""
    rows = []
    for tensor in tensors:
        largest = "" if tensor.largest is None else f"{tensor.largest:.3g}"
        rows.append([one_line(tensor.name), tensor.shape, tensor.difference or "identical", largest])
    title = "\n".join(f"{side}: {one_line(name)}" for side, name in zip("AB", names, strict=True))
    terminal.table(title, ["tensor", "type", "compared", "by at most"], rows)
    for place in places[:_MOST_PLACES]:
        terminal.line(f"  other state: {one_line(place)}", style="red")
    if len(places) > _MOST_PLACES:
        terminal.line(f"  and {len(places) - _MOST_PLACES} more places of other state")
    differing = sum(tensor.difference is not None for tensor in tensors)
    count = counted(len(rows), "tensor")
    if not differing and not places:
        terminal.line(f"identical: {count}, and all other state", style="bold green")
    else:
        other = f"{counted(len(places), 'place')} of other state"
        terminal.line(f"different: {differing} of {count}, {other}", style="bold red")
