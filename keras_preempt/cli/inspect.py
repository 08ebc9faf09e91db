"""``keras-preempt inspect``: what checkpoints a directory has, why they were made, and whether they are whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from keras_preempt.cli.checkpoint_summary import checkpoints_of, left_over_in, run_of
from keras_preempt.cli.drill.notices_told import with_notices
from keras_preempt.cli.inspect_compare import compare_checkpoints, print_differences
from keras_preempt.cli.inspect_tables import print_checkpoints, print_left_over, print_run
from keras_preempt.cli.opened_run import directory_argument, opened_run
from keras_preempt.cli.terminal import Terminal

__all__ = ["inspect"]

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
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, for programs.")
def inspect(directory: str, verify: bool, compare: tuple[str, str] | None, as_json: bool) -> int:
    """Show what a run has saved: its checkpoints, why each was made, and what was left half-written.

    DIR is the directory that was given to PreemptionCallback: a path, or gs://bucket/prefix. Nothing is ever written,
    so the permission to read is enough, and the run may be going on meanwhile. Epochs and batches count from 0, as in
    callbacks; the batch is the one that comes next. Times are UTC. Of the workers, "1/2" have written the weights.
    A checkpoint was made because the job was preempted (its notices stand below the table), periodic because of
    save_every, at a deadline because a grace period was used up, or because training has finished.

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
