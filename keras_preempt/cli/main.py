"""The ``keras-preempt`` command line. It does not import TensorFlow, so that it starts quickly."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import click

from keras_preempt import __version__

# In the order in which the help shows them.
_COMMANDS = {
    "run": "keras_preempt.cli.run",
    "doctor": "keras_preempt.cli.doctor.command",
    "drill": "keras_preempt.cli.drill.command",
    "report": "keras_preempt.cli.report",
    "inspect": "keras_preempt.cli.inspect",
    "export": "keras_preempt.cli.export",
    "save": "keras_preempt.cli.save",
    "clean": "keras_preempt.cli.clean",
}


class _LazyGroup(click.Group):
    """Imports a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            cure = f"Did you mean {near[0]!r}?" if near else f"The commands are {', '.join(_COMMANDS)}."
            raise click.UsageError(f"Expected a command. Received: {name!r}. {cure}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="keras-preempt")
def cli() -> None:
    """Keras training that survives preemption and resumes bit-identically.

    Add one line to the script: model.fit(..., callbacks=[PreemptionCallback("runs/1")]). Then

    \b
      keras-preempt run   --workers 2 -- python train.py   trains, and restarts after a preemption
      keras-preempt doctor runs/1 -- python train.py       finds what would lose work, beforehand
      keras-preempt drill --workers 2 -- python train.py   proves that nothing is lost by one
      keras-preempt report  runs/1                         shows what was lost, and where time went
      keras-preempt inspect runs/1                         shows what was saved, and why
      keras-preempt export  runs/1 out.weights.h5          writes the weights for Keras
      keras-preempt save    runs/1                         asks the running job to save now
      keras-preempt clean   runs/1                         removes superseded checkpoints

    Every command explains itself: keras-preempt COMMAND --help.
    """  # noqa: D301 - click's own mark for text that it must not wrap


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code. By default that of this process, which exits right afterwards."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    open_standard_descriptors()
    try:
        with cleaning_up_on_signals():
            # Commands find in `obj` whether this process exits right afterwards.
            code = cli.main(arguments, prog_name="keras-preempt", standalone_mode=False, obj=argv is None)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "keras-preempt"
        said = error.format_message()
        said += "" if said.endswith((".", "?")) else "."
        command = error.ctx is not None and error.ctx.command.collect_usage_pieces(error.ctx)
        strange = isinstance(error, click.NoSuchOption) or "unexpected extra argument" in said
        if command and strange and "COMMAND..." in " ".join(command):
            said += " If that belongs to your program, put '--' before the program: -- python train.py --epochs 3."
        click.echo(f"Error: {said} (Try: {path} --help)", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"Error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        click.echo("Interrupted.", err=True)
        return 130
    return code if isinstance(code, int) else 0


_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def open_standard_descriptors() -> None:
    """Opens the standard descriptors that are closed (``>&-``), so that no file opened later takes their numbers.

    A library in C that writes to standard output would write into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, which is this one.


@contextlib.contextmanager
def cleaning_up_on_signals() -> Iterator[None]:
    """Makes a signal n that would kill this process an exit with status 128 + n, which removes temporary directories.

    Python turns SIGINT into an exception itself. Signals that are ignored (nohup) or have a handler are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _LEAVING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _leave:
                signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
