"""Errors reach another process as they are, as from a worker of KerasTuner, Ray or `multiprocessing`."""

from __future__ import annotations

import copy
import errno
import importlib
import pickle
import pkgutil
from typing import Any

import pytest

import keras_preempt
from keras_preempt import WorkerLost
from keras_preempt.checkpoint.values import Box

#: What each error is raised with that composes its message itself. All others get a message alone.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "AlreadyExists": ("MANIFEST.json", "runs/1"),
    "CorruptCheckpoint": ("MANIFEST.json", "it is empty"),
    "Fenced": (1, 2, "runs/1"),
    "KerasInternalsError": ("a name", "another"),
    "NoUsableCheckpoint": ("runs/1", ["one is empty", "one is gone"]),
    "NotEnoughMemory": ("runs/1", 3, 2),
    "NotFound": ("MANIFEST.json", "runs/1"),
    "PartsMissing": ("Two parts are missing", (1, 2)),
    "PiecesLost": ([Box("kernel", "float32", (2,), (0,), (1,))], [1]),
    "StoreUnavailable": (errno.ENOSPC, "There is no room"),
    "TooLarge": ("MANIFEST.json", 3, 2),
    "UnsupportedFormat": ("run.json", 3, 2),
    "WorkerLost": (None, None, "A worker is gone"),
    "_UnsupportedVersion": ("JAX", "1.0", ("0.10.2",), "a name"),
}


OTHERS = tuple(
    f"keras_preempt.{room}" for room in ("cli", "testing", "backend.jax", "backend.torch", "__main__")
)


def errors() -> list[type[Exception]]:
    """Every error of the package, but for those that stay in the process of a command or of a fake server."""
    found: dict[str, type[Exception]] = {}
    for module in pkgutil.walk_packages(keras_preempt.__path__, "keras_preempt."):
        if module.name.startswith(OTHERS):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.name:
                found[name] = value
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_after_a_pickle(kind: type[Exception]) -> None:
    error = kind(*ARGUMENTS.get(kind.__name__, ("What went wrong",)))
    if kind is not WorkerLost:  # TensorFlow's own errors keep what they are made of.
        error.__dict__["noted"] = "later"
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again) == vars(error)
        if isinstance(error, OSError):
            assert isinstance(again, OSError)
            assert (again.errno, again.strerror) == (error.errno, error.strerror)
