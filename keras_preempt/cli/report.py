"""``keras-preempt report``: shows every start of a run, what was lost, and where the wall time went."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.cli.options import directory_argument, json_option, opened, seconds_option
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cli.watch import Watch
from keras_preempt.report.account import Account
from keras_preempt.report.loading import Loader
from keras_preempt.report.page import page
from keras_preempt.report.prometheus import prometheus_text
from keras_preempt.report.tables import account_as_json, notices, places, saves, starts, times
from keras_preempt.report.wording import headline, losses, summary

_MADE, _NOT_FINISHED = 0, 4


_PRINTED = Path("-")


class _PromFile(click.ParamType):  # type: ignore[type-arg]
    name = "file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(str(value))
        if file != _PRINTED and file.suffix != ".prom":
            self.fail(
                "Expected a FILE that ends in .prom, since node_exporter's textfile collector ignores all others. "
                f"Received: {str(value)!r}. Name it so; to print the figures, put --prometheus behind DIR.",
                param,
                ctx,
            )
        return file


@click.command()
@directory_argument
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with the timeline as a picture to FILE: one file that needs no server, no network and no "
    "script, and can be sent to anybody. An existing FILE is replaced.",
)
@json_option("Print everything as JSON, for programs.")
@click.option(
    "--prometheus",
    "prometheus_file",
    type=_PromFile(),
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the figures as Prometheus text to FILE, for the textfile collector of node_exporter: its name has to "
    "end in .prom. It is replaced as a whole, and everybody may read it. Without FILE, or with -, they are printed.",
)
@click.option(
    "--over",
    is_flag=True,
    help="Nothing of the run is still running. Without this, workers on other machines that have not reported an "
    "end are taken as running until now.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Show the run while it trains, until it is finished or Ctrl-C is pressed; DIR need not be there yet. With "
    "--html, FILE is written again whenever something has happened.",
)
@seconds_option("--timeout", help="With --watch: give up after so long.")
def report(
    directory: str,
    html_file: Path | None,
    as_json: bool,
    prometheus_file: Path | None,
    over: bool,
    watch: bool,
    timeout: float | None,
) -> int:
    """Show what happened in a run: every start, the steps and the time that were lost, and where each second went.

    DIR is the directory that was given to PreemptionCallback: a path, or a bucket's gs://, s3:// or az:// URL. Only the
    events in it are read, and nothing is written there, so the permission to read is enough, and the run may be going
    on.

    Goodput is the part of the workers' wall time that was productive: in which they trained steps that did not have
    to be run again. All other time is badput and has a cause: start, restore, recomputed steps, save, hang, exit,
    waiting for machines, or unknown. The lost time of an interruption goes from the last step before it to the
    first one after it, with the steps that were run again.

    The wall time of a worker goes from the start of its first process to the end of its last one. A launcher
    (keras-preempt run, or drill) notes when each process ended; without one it is the end of fit. What is missing
    in the events, because a file is damaged or a process was killed, is named, and the rest is reported.

    \b
    Examples:
      keras-preempt report runs/1
      keras-preempt report gs://bucket/runs/1 --html report.html
      keras-preempt report runs/1 --json | jq .goodput
      keras-preempt report runs/1 --watch
      keras-preempt report runs/1 --prometheus /var/lib/node_exporter/run-1.prom

    \b
    Exit codes:
      0  the report was made, also of a run that failed, goes on, or has reported only a part
      2  wrong usage, or FILE cannot be written
      3  DIR cannot be read, is not the directory of a run, or has no events
      4  with --watch: the run was not finished when the time was over, or when its output was no longer read
    """  # noqa: D301 - click's own mark for text that it must not wrap
    if as_json and prometheus_file is not None:
        raise click.UsageError("Expected --json or --prometheus. Received: both. Leave one out.")
    if watch:
        if as_json or over or prometheus_file is not None:
            option = "--json" if as_json else "--over" if over else "--prometheus"
            raise click.UsageError(f"Expected --watch without {option}. Received: both. Leave one out.")
        terminal = Terminal()
        with opened(directory) as store:
            watching = Watch(store, directory, timeout, lambda account: _write(html_file, account, directory))
            try:
                finished = watching.run(terminal)
            except KeyboardInterrupt:
                finished = True  # As the user wanted.
        if watching.account is not None and not terminal.lost:
            _print(terminal, watching.account, directory)
        return _MADE if finished else _NOT_FINISHED
    if timeout is not None:
        raise click.UsageError(
            "Expected --timeout together with --watch. Received: --timeout alone. Add --watch."
        )
    collects = gc.isenabled()
    gc.disable()  # Millions of objects without a cycle: to look for one takes as long as the report.
    try:
        with opened(directory) as store:
            account = Loader(store, over=over).load()
        _write(html_file, account, directory)
        if prometheus_file is not None:
            text = prometheus_text(
                account, os.path.abspath(directory) if store.is_local else directory.rstrip("/")
            )
            if prometheus_file == _PRINTED:
                click.echo(text, nl=False)
            else:
                _replace(prometheus_file, text, "the figures", mode=0o644)
            return _MADE
        if as_json:
            _print_json(account, directory)
            return _MADE
        _print(Terminal(), account, directory)
    finally:
        if collects:
            gc.enable()
    if html_file is not None:
        click.echo(f"The page is {os.path.abspath(html_file)}: open it in any browser.")
    return _MADE


def _write(file: Path | None, account: Account, directory: str) -> None:
    """Writes the page, if one is wanted."""
    if file is not None:
        _replace(file, page(account, directory), "the page")


def _replace(file: Path, text: str, what: str, mode: int | None = None) -> None:
    """Writes a file as a whole, under another name first; with a mode, or that of the process."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, "utf-8", "replace")  # Names of files need not be Unicode.
        if mode is not None:
            partial.chmod(mode)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise click.UsageError(
            f"Expected a file to write {what} to. Received: {str(file)!r} ({error.strerror}). Name one in a "
            "folder that exists and that you may write to."
        ) from None


def _print_json(account: Account, directory: str) -> None:
    """Prints one field, or one item of a list, on each line; with more lines it would take far longer."""
    lines = []
    for name, value in account_as_json(account, directory).items():
        if not isinstance(value, list) or not value:
            text = json.dumps(value)
        else:
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        lines.append(f"  {json.dumps(name)}: {text}")
    click.echo("{\n" + ",\n".join(lines) + "\n}")


def _print(terminal: Terminal, account: Account, directory: str) -> None:
    terminal.line(f"{one_line(directory)}: {headline(account)}", style="bold")
    for line in summary(account):
        terminal.line(line)
    for line in losses(account):
        terminal.line(line, style="yellow")
    for table in (starts(account), times(account), notices(account), saves(account), places(account)):
        if table.rows:
            # docs/report.md and the page have the other columns.
            shown = [index for index, column in enumerate(table.columns) if not column.page_only]
            terminal.line("")
            terminal.table(
                table.title,
                [table.columns[index].title for index in shown],
                [[row[index] for index in shown] for row in table.rows],
                left={position for position, index in enumerate(shown) if table.columns[index].left},
            )
    if account.gaps:
        terminal.line("")
        terminal.line("What is missing:", style="bold yellow")
        for gap in account.gaps:
            terminal.line(f"  {gap}")
