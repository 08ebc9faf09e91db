"""``keras-preempt clean``: asks, and removes what the next commit would remove anyway."""

from __future__ import annotations

import contextlib
import sys

import click

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, NotFound
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tidying import Tidying, remove_attempt
from keras_preempt.cli.options import directory_argument, opened_run
from keras_preempt.cli.terminal import Terminal, shown_size
from keras_preempt.process.words import counted

_DONE, _NOT_DONE = 0, 1


@click.command()
@directory_argument
@click.option(
    "--max-to-keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of the checkpoints that were committed last stay; by default as the last start had it.",
)
@click.option(
    "--keep-every",
    metavar="EVERY",
    help="Which others stay, the first of each: a number of steps, 'epoch', or a time such as 1h; by default as "
    "the last start had it. 'never': no others.",
)
@click.option(
    "--stopped",
    is_flag=True,
    help="The job is not running: remove what its last start has left half-written, too.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(directory: str, max_to_keep: int | None, keep_every: str | None, stopped: bool, yes: bool) -> int:
    """Remove superseded checkpoints and what was left half-written, as the next commit would do.

    Shows what would go, and asks. What stays is what PreemptionCallback keeps: the newest max_to_keep checkpoints that
    are whole, and with keep_every the first of each period. A checkpoint that cannot be read stays, and so does
    everything that no save has written. The run may be going on: what its present start writes is left alone.

    \b
    Examples:
      keras-preempt clean runs/1
      keras-preempt clean gs://bucket/runs/1 --max-to-keep 1 --yes
      keras-preempt clean runs/1 --stopped

    \b
    Exit codes:
      0  removed, or there was nothing to remove
      1  not everything was removed: it could not be, or the answer was no
      2  wrong usage
      3  DIR cannot be read, or is not the directory of a run
    """  # noqa: D301 - click's own mark for text that it must not wrap
    terminal = Terminal()
    with opened_run(directory) as (store, _):
        newest = incarnations.latest(store)
        retention = _retention(store, newest, max_to_keep, keep_every)
        # What the last start has not committed may still be committed.
        below = newest + 1 if stopped else newest
        going = Tidying(store, retention, below).removable()
        if not going:
            terminal.line(f"Nothing to remove in {store.url} ({retention}).")
            return _DONE
        sizes = {folder: sum(file.size for file in store.list(folder)) for folder in going}
        terminal.table(
            f"To be removed from {store.url} ({retention})",
            ["folder", "size"],
            [[folder, shown_size(size)] for folder, size in sizes.items()],
        )
        total = shown_size(sum(sizes.values()))
        try:
            confirmed = yes or click.confirm(f"Remove {counted(len(going), 'folder')}, {total}?")
        except click.Abort:
            if sys.stdin.isatty():  # Ctrl-C
                raise
            raise CannotRemove(
                "Expected an answer. Received: none. Nothing was removed; pass --yes."
            ) from None
        if not confirmed:
            terminal.line("Nothing was removed.")
            return _NOT_DONE
        # A running job may have fallen back meanwhile: what it needs now is no longer superseded.
        still = set(Tidying(store, retention, below).removable())
        folders = [folder for folder in going if folder in still]
        for done, folder in enumerate(folders):
            try:
                remove_attempt(store, folder)
            except CheckpointError as error:
                raise CannotRemove(f"Removed {done} of {counted(len(folders), 'folder')}. {error}") from None
        what = f"Removed {counted(len(folders), 'folder')}, {total}."
        terminal.line(what if folders else "Others have removed everything meanwhile.")
        return _DONE


class CannotRemove(click.ClickException):
    exit_code = _NOT_DONE


def _retention(store: Store, newest: int, max_to_keep: int | None, keep_every: str | None) -> Retention:
    kept = Retention()
    if newest and (max_to_keep is None or keep_every is None):
        with contextlib.suppress(NotFound):  # A start that failed has taken its claim back.
            kept = Retention.from_json(incarnations.read_claim(store, newest).get("retention"))
    every = kept.keep_every
    if keep_every is not None:
        every = None if keep_every == "never" else int(keep_every) if keep_every.isdecimal() else keep_every
    try:
        return Retention(max_to_keep or kept.max_to_keep, every)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
