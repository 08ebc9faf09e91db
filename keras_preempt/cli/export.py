"""``keras-preempt export``: writes the weights of a checkpoint to a file for Keras or for any reader of safetensors."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import parse_attempt
from keras_preempt.checkpoint.run_directory import read_chosen
from keras_preempt.checkpoint.storage.opening import names_bucket
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import stream
from keras_preempt.cli.options import CannotRead, directory_argument, opened_run
from keras_preempt.cli.terminal import is_silenced, shown_size
from keras_preempt.process.words import some
from keras_preempt.state.saved_weights import GROUP, Weights, read_weights

_SUFFIXES = (".weights.h5", ".keras", ".safetensors")
_NAMED = 5


@click.command()
@directory_argument
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Of that step; by default the newest whole one."
)
@click.option(
    "--model",
    metavar="MODEL",
    help="How to make the model, if DIR does not say: MODULE:FUNCTION or FILE.py:FUNCTION of your program, which "
    "returns it, or a .keras or .json file of it. Only for .weights.h5 and .keras.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def export(directory: str, out: Path, step: int | None, model: str | None, force: bool) -> int:
    """Write the weights of a checkpoint to OUT, for Keras or for anything that reads safetensors.

    \b
    OUT ends with
      .weights.h5    for model.load_weights(OUT); needs Keras and its backend
      .keras         for keras.models.load_model(OUT), with the architecture; needs both, too
      .safetensors   tensors by the path of their variable; needs neither

    The weights are those of that step, bit for bit: averages that the optimizer keeps (use_ema) and best weights that a
    callback keeps are not applied. Statistics that differ between replicas, as those of BatchNormalization do, are
    averaged. Optimizer, metrics and seeds are not exported. Every byte that is read is verified; DIR is not written to,
    and the run may be going on.

    For Keras' own formats the model is made from the architecture that the run has kept in DIR, if it is of Keras' own
    layers; else --model says how to make it. A module or file that it names is imported, so it runs; it cannot train,
    since a call of fit in it is an error.

    \b
    Examples:
      keras-preempt export runs/1 digits.weights.h5
      keras-preempt export gs://bucket/runs/1 --step 1200 digits.safetensors
      keras-preempt export runs/1 digits.keras --model train.py:make_model

    \b
    Exit codes:
      0  written
      2  wrong usage
      3  DIR cannot be read, is not the directory of a run, has no such checkpoint,
         or the model cannot be made
      4  OUT cannot be written
    """  # noqa: D301 - click's own mark for text that it must not wrap
    if not out.name.endswith(_SUFFIXES) or out.name in _SUFFIXES:
        raise click.UsageError(
            f"Expected OUT to end with one of {', '.join(_SUFFIXES)}. Received: {str(out)!r}."
        )
    if names_bucket(str(out)):
        raise click.UsageError(
            f"Expected OUT on a local disk. Received: {str(out)!r}. Copy it to the bucket afterwards."
        )
    if not os.path.isdir(out.parent):
        raise click.UsageError(
            f"Expected OUT in a folder that exists. Received: {str(out)!r}. Make the folder first."
        )
    if os.path.lexists(out) and not force:
        raise click.UsageError(
            f"Expected OUT not to exist. Received: {str(out)!r}, which does. Pass --force to replace it."
        )
    if out.suffix == ".safetensors" and model is not None:
        raise click.UsageError("Expected no --model for .safetensors, which holds weights alone.")
    with opened_run(directory) as (store, run):
        left_out: list[str] = []
        if out.suffix == ".safetensors":
            info, weights = read_chosen(store, step, lambda info: read_weights(store, info))
            found, variables = info.step, run.get("model")
            assert isinstance(variables, list)
            strings = [each for each in variables if isinstance(each, dict) and each.get("dtype") == "string"]
            named = {str(each.get("name")).removeprefix(GROUP) for each in strings}
            left_out = [name for name in weights.values if name in named]
            for name in left_out:
                del weights.values[name]
            with _written_whole(out) as unfinished, open(unfinished, "wb") as file:
                for chunk in stream(weights.values):
                    file.write(chunk.data)
        else:
            with _without_noise():
                found, weights = _write_with_keras(store, step, out, model)
        size = sum(value.nbytes for value in weights.values.values())
        click.echo(
            f"{out}: {len(weights.values)} weights ({shown_size(size)}) of step {found} in {store.url}"
        )
        notes: dict[str, list[str]] = {}
        for name, how in weights.combined.items():
            notes.setdefault(f"different on the replicas, {how}", []).append(name)
        if left_out:
            notes["left out, since the format has no strings"] = left_out
        for note, names in notes.items():
            click.echo(f"  {note}: {some(list(map(one_line, names)), _NAMED)}")
    return 0


class CannotWrite(click.ClickException):
    exit_code = 4


@contextlib.contextmanager
def _written_whole(out: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which becomes `out` when the block ends without an exception."""
    try:
        with tempfile.TemporaryDirectory(prefix=".tmp-export-", dir=out.parent) as folder:
            unfinished = Path(folder) / out.name
            yield unfinished
            with open(unfinished, "rb") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, out)
    except OSError as error:
        raise CannotWrite(
            f"Expected to write {str(out)!r}. Received: {error.strerror or error}. Choose another folder, or make room."
        ) from None


def _write_with_keras(store: Store, step: int | None, out: Path, model: str | None) -> tuple[int, Weights]:
    """Makes the model, gives it the weights, and lets Keras write the file."""
    from keras_preempt.backend.requirements import check_installed

    try:
        check_installed()
    except ImportError as error:
        raise CannotRead(f"{error} A .safetensors file needs neither.") from None
    from keras_preempt.cli.export_model import model_from
    from keras_preempt.state.architecture import NoArchitecture, rebuild
    from keras_preempt.state.weights import load_weights_from

    names: list[str] | None = None
    if model is not None:
        made = model_from(model)
    else:
        _, incarnation = read_chosen(store, step, lambda info: parse_attempt(info.attempt)[0])
        try:
            made, names = rebuild(store, incarnation)
        except NoArchitecture as error:
            raise CannotRead(
                f"{error} Say how to make it: --model train.py:make_model. .safetensors needs none."
            ) from None
    try:
        found, weights = load_weights_from(made, store, step, names)
    except ValueError as error:  # It is not built.
        raise CannotRead(str(error)) from None
    with _written_whole(out) as unfinished:
        if out.suffix == ".keras":
            made.save(unfinished)
        else:
            made.save_weights(unfinished)
    return found, weights


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Holds back standard error, and drops what TensorFlow logs while it loads although it was told not to."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            kept.seek(0)
            for line in kept.read().decode(errors="replace").splitlines():
                if not is_silenced(line, level):
                    click.echo(line, err=True)
