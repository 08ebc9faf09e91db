"""``keras-preempt export``: writes the weights of a checkpoint to a file for Keras or for any reader of safetensors."""

from __future__ import annotations

import os
from pathlib import Path

import click

from keras_preempt.checkpoint.storage.opening import names_bucket
from keras_preempt.cli.options import directory_argument, opened_run

_SUFFIXES = (".weights.h5", ".keras", ".safetensors")


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
    with opened_run(directory) as (store, _):
        if out.name.endswith(".safetensors"):
            if model is not None:
                raise click.UsageError("Expected no --model for .safetensors, which holds weights alone.")
            from keras_preempt.cli.export_formats import export_safetensors

            lines = export_safetensors(store, step, out)
        else:
            from keras_preempt.cli.export_formats import export_keras

            lines = export_keras(store, step, out, model)
    for line in lines:
        click.echo(line)
    return 0
