"""Makes the model that `keras-preempt export --model` names; what it imports for that cannot train."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
import keras

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.state.architecture import NoArchitecture, model_of


def model_from(argument: str) -> Any:
    """Returns the model; raises `click.UsageError` if it cannot be made."""
    try:
        if argument.endswith(".keras"):
            return keras.models.load_model(argument, compile=False)
        if argument.endswith(".json"):
            return model_of(Path(argument).read_text(), argument)
    except (NoArchitecture, OSError, ValueError, TypeError) as error:
        raise click.UsageError(
            f"Expected --model to be a file that Keras can load. Received: {argument!r} ({one_line(str(error))})."
        ) from None
    place, _, name = argument.rpartition(":")
    if not place or not name:
        raise click.UsageError(
            "Expected --model as MODULE:FUNCTION, FILE.py:FUNCTION, or a .keras or .json file. Received: "
            f"{argument!r}. Write for example: --model train.py:make_model"
        )
    try:
        with _training_refused(place):
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


class TrainingRefused(RuntimeError):
    pass


@contextlib.contextmanager
def _training_refused(program: str) -> Iterator[None]:
    """In the block every `fit` and `train_on_batch` of every model raises `TrainingRefused`."""

    def refuse(name: str) -> Any:
        @functools.wraps(getattr(keras.Model, name))
        def refusing(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
            raise TrainingRefused(
                f"Expected {program} to make its model without training. Received: a call of model.{name} while it was "
                'imported. Put what trains under `if __name__ == "__main__":`. Nothing was trained.'
            )

        return refusing

    with contextlib.ExitStack() as undone:
        for name in ("fit", "train_on_batch"):
            own = vars(keras.Model).get(name)
            setattr(keras.Model, name, refuse(name))
            if own is None:  # Inherited, as it is by default.
                undone.callback(delattr, keras.Model, name)
            else:
                undone.callback(setattr, keras.Model, name, own)
        yield


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
