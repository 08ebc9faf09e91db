"""Writes exported weights: as safetensors without Keras, or in Keras' formats, for which the model is made."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import parse_attempt
from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import stream
from keras_preempt.cli.options import CannotRead
from keras_preempt.cli.terminal import is_silenced, shown_size
from keras_preempt.report.tables import some
from keras_preempt.state.saved_weights import GROUP, Weights, read_weights

_NAMED = 5


class CannotWrite(click.ClickException):
    """The file cannot be written."""

    exit_code = 4


@contextlib.contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which becomes `out` when the block ends without an exception.

    Raises:
        CannotWrite: The disk is full, or there is no permission.
    """
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


def told(out: Path, step: int, directory: str, weights: Weights, left_out: Sequence[str] = ()) -> list[str]:
    """Returns the lines to print about an export."""
    size = sum(value.nbytes for value in weights.values.values())
    lines = [f"{out}: {len(weights.values)} weights ({shown_size(size)}) of step {step} in {directory}"]
    ways: dict[str, list[str]] = {}
    for name, how in weights.combined.items():
        ways.setdefault(how, []).append(name)
    for how, names in ways.items():
        lines.append(f"  different on the replicas, {how}: {_some(names)}")
    if left_out:
        lines.append(f"  left out, since the format has no strings: {_some(left_out)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return some(list(map(one_line, names)), _NAMED)


def export_safetensors(store: Store, step: int | None, out: Path) -> list[str]:
    """Writes the weights by the paths of their variables; returns the lines to print about it.

    Raises:
        CheckpointError: They cannot be read.
        CannotWrite: The file cannot be written.
    """
    info, weights = read_chosen(store, step, lambda info: read_weights(store, info))
    strings = _strings(read_run(store))
    left_out = [name for name in weights.values if name in strings]
    kept = replace(weights, values={name: v for name, v in weights.values.items() if name not in strings})
    with written_whole(out) as unfinished, open(unfinished, "wb") as file:
        for chunk in stream(kept.values):
            file.write(chunk.data)
    return told(out, info.step, store.url, kept, left_out)


def _strings(run: dict[str, object]) -> set[str]:
    model = run.get("model")
    assert isinstance(model, list)
    found = set()
    for variable in model:
        if isinstance(variable, dict) and variable.get("dtype") == "string":
            found.add(str(variable.get("name")).removeprefix(GROUP))
    return found


def export_keras(store: Store, step: int | None, out: Path, model: str | None) -> list[str]:
    """Makes the model, gives it the weights, and lets Keras write the file; returns the lines to print about it.

    Args:
        store: The run's directory.
        step: Training steps done; None for the newest.
        out: Ends with ".weights.h5" or ".keras".
        model: The value of --model; None to make the model from what the directory holds.

    Raises:
        click.UsageError: The model cannot be made as --model says.
        CheckpointError: The weights cannot be read, or are those of another model.
        CannotRead: Keras and its backend are not installed, or the model cannot be made from the directory.
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
