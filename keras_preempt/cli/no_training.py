"""Keeps a program from training while it is imported for something else, such as its model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import keras

_TRAINS = ("fit", "train_on_batch")


class TrainingRefused(RuntimeError):
    """A program that is imported for something else began to train."""


@contextlib.contextmanager
def refused(program: str) -> Iterator[None]:
    """Refuses training inside the block: every `fit` and `train_on_batch` of every model raises.

    Args:
        program: What is imported, such as "train.py".

    Raises:
        TrainingRefused: By the call that would train.
    """

    def refuse(name: str) -> Any:
        @functools.wraps(getattr(keras.Model, name))
        def refusing(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
            raise TrainingRefused(
                f"Expected {program} to make its model without training. Received: a call of model.{name} while it was "
                'imported. Put what trains under `if __name__ == "__main__":`. Nothing was trained.'
            )

        return refusing

    with contextlib.ExitStack() as undone:
        for name in _TRAINS:
            own = vars(keras.Model).get(name)
            setattr(keras.Model, name, refuse(name))
            if own is None:  # Inherited, as it is by default.
                undone.callback(delattr, keras.Model, name)
            else:
                undone.callback(setattr, keras.Model, name, own)
        yield
