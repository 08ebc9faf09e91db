"""Exports weights in the formats of Keras, for which the model is made: by the run's directory or by a program."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from keras_preempt.checkpoint.choosing import read_chosen
from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import parse_attempt
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.cli.export_output import told, written_whole
from keras_preempt.cli.opened_run import CannotRead
from keras_preempt.cli.terminal import is_silenced

__all__ = ["export_keras"]


def export_keras(store: Store, step: int | None, out: Path, model: str | None) -> list[str]:
    """Makes the model, gives it the weights, and lets Keras write the file; returns what to say of it.

    Args:
        store: The run's directory.
        step: Optimizer steps done; None for the newest.
        out: Ends with ".weights.h5" or ".keras".
        model: What --model says; None to make the model from what the directory has.

    Raises:
        click.UsageError: The model cannot be made as --model says.
        CheckpointError: The weights cannot be read, or are those of another model.
        CannotRead: Keras and TensorFlow are not installed, or the model cannot be made from the directory.
        CannotWrite: The file cannot be written.
    """
    with _without_noise():
        from keras_preempt.backend.requirements import check

        try:
            check()
        except ImportError as error:
            raise CannotRead(f"{error} A .safetensors file needs neither.") from None
        return _export(store, step, out, model)


def _export(store: Store, step: int | None, out: Path, model: str | None) -> list[str]:
    from keras_preempt.state.weights import load_weights_from

    made, names = _kept(store, step) if model is None else (_from_argument(model), None)
    try:
        found, weights = load_weights_from(made, store, step, names)
    except ValueError as error:  # It is not built.
        raise CannotRead(str(error)) from None
    with written_whole(out) as unfinished:
        if out.name.endswith(".weights.h5"):
            made.save_weights(unfinished)
        else:
            made.save(unfinished)
    return told(out, found, store.url, weights)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Keeps back what TensorFlow logs while it is loaded, whatever it is told; passes on all else at the end."""
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


def _kept(store: Store, step: int | None) -> tuple[Any, list[str]]:
    from keras_preempt.state.architecture import NoArchitecture, rebuild

    _, incarnation = read_chosen(store, step, lambda info: parse_attempt(info.attempt)[0])
    try:
        return rebuild(store, incarnation)
    except NoArchitecture as error:
        raise CannotRead(
            f"{error} Say how to make it: --model train.py:make_model. .safetensors needs none."
        ) from None


def _from_argument(argument: str) -> Any:
    import keras

    from keras_preempt.state.architecture import NoArchitecture, model_of

    try:
        if argument.endswith(".keras"):
            return keras.models.load_model(argument, compile=False)
        if argument.endswith(".json"):
            return model_of(Path(argument).read_text(), argument)
    except (NoArchitecture, OSError, ValueError, TypeError) as error:
        raise click.UsageError(
            f"Expected --model to be a file that Keras can load. Received: {argument!r} ({one_line(str(error))})."
        ) from None
    place, colon, name = argument.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(
            "Expected --model as MODULE:FUNCTION, FILE.py:FUNCTION, or a .keras or .json file. Received: "
            f"{argument!r}. Write for example: --model train.py:make_model"
        )
    from keras_preempt.cli.no_training import TrainingRefused, refused

    try:
        with refused(place):
            make = getattr(_imported(place), name, None)
            if not callable(make):
                raise click.UsageError(
                    f"Expected a function named {name!r} in {place}. Received: {type(make).__name__}."
                )
            model = make()
    except TrainingRefused as error:
        raise click.UsageError(str(error)) from None
    if not isinstance(model, keras.Model):
        raise click.UsageError(
            f"Expected {argument} to return a keras.Model. Received: {type(model).__name__}."
        )
    return model


def _imported(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())  # As `python -m` finds the user's own modules.
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise click.UsageError(
                f"Expected --model to name a module that can be imported here. Received: {place!r} ({error})."
            ) from None
    path = Path(place)
    if not path.is_file():
        raise click.UsageError(
            f"Expected --model to name a Python file. Received: {place!r}, which does not exist."
        )
    sys.path.insert(0, str(path.parent.resolve()))  # As `python FILE.py` does.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
