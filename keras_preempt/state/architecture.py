"""The architecture of a model beside its checkpoints, so that its weights can be exported without its program.

`models/00007.json` has the model of the start with that number as `keras.Model.to_json` describes it; a later start
writes another one only if its model differs. It is data: a restore does not use it, and only classes of Keras itself
are ever made from it.
"""

from __future__ import annotations

import json
import logging
import warnings
from typing import Any

import keras

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    CorruptCheckpoint,
    NotFound,
    one_line,
)
from keras_preempt.checkpoint.layout import MODELS, model_file, parse_incarnation
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.state.weights import named_variables

logger = logging.getLogger("keras_preempt")

LARGEST = 16 << 20
"""The most bytes of a description that is kept."""

_DEEPEST = 200  # Levels of a description that are searched.


class NoArchitecture(CheckpointError):
    """The model cannot be made from what the directory holds."""


def describe(model: keras.Model) -> dict[str, Any] | None:
    """Returns how Keras describes a built model, without how it is trained, and the names of its variables; or None.

    Called on every worker, since the model's own code runs, and may read variables for which all workers are needed.
    """
    try:
        with warnings.catch_warnings():
            # A lambda is unsafe to load, but that is for the reader to judge.
            warnings.simplefilter("ignore")
            text = backend().described(model)
        description = json.loads(text)
    except Exception as error:  # Whatever the model's own get_config raises: training does not depend on it.
        logger.debug("The architecture is not kept beside the checkpoints: %s", error)
        return None
    if not isinstance(description, dict) or len(text) > LARGEST or '"__lambda__"' in text:
        return None  # A lambda is described by its code, and no code gets into the directory.
    description.pop("compile_config", None)
    return {"keras": keras.__version__, "model": description, "variables": list(named_variables(model))}


def keep(store: Store, incarnation: int, description: dict[str, Any] | None) -> None:
    """Writes what `describe` has returned in the run's directory, unless the newest description says the same.

    An error is logged, not raised.
    """
    if description is None:
        return
    try:
        data = documents.encode_document({"format": documents.FORMAT, **description})
        newest = newest_file(store)
        if newest is None or documents.read_document(store, newest) != documents.decode_document(
            data, newest
        ):
            store.create(model_file(incarnation), data)
    except (CheckpointError, TypeError, ValueError) as error:
        if not isinstance(error, (AlreadyExists, NotFound)):
            logger.warning("The architecture could not be kept beside the checkpoints: %s", error)


def newest_file(store: Store, incarnation: int | None = None) -> str | None:
    """Returns the name of the newest description, up to that of a start if given; None if there is none."""
    numbers = [number for name in store.children(MODELS) if (number := parse_incarnation(name)) is not None]
    fitting = [number for number in numbers if incarnation is None or number <= incarnation]
    return model_file(max(fitting)) if fitting else None


def rebuild(store: Store, incarnation: int) -> tuple[keras.Model, list[str]]:
    """Makes the model that a start has trained, from classes of Keras alone; raises `CheckpointError` if it cannot.

    Returns also the names by which a checkpoint has its variables, in their order. The model's own can be others.
    """
    name = newest_file(store, incarnation)
    if name is None:
        raise NoArchitecture(
            f"Expected the architecture of the model in {store.url}/{MODELS}. Received: none; its layers could not be "
            "described, or an older release has begun the run. Pass the model."
        )
    kept = documents.read_document(store, name)
    description, names = kept.get("model"), kept.get("variables")
    if not isinstance(names, list) or not all(isinstance(variable, str) for variable in names):
        raise CorruptCheckpoint(name, "an unexpected structure")
    foreign = sorted(set(_foreign(description, 0)))
    if foreign:
        raise NoArchitecture(
            f"Expected a model of Keras' own layers in {name}. Received: {one_line(', '.join(foreign))}. Only its own "
            "program can make that: pass the model."
        )
    return model_of(json.dumps(description), name), names


def model_of(text: str, name: str) -> keras.Model:
    """Makes a model from what `to_json` has returned, read from a file; raises `NoArchitecture` if Keras cannot."""
    try:
        model = keras.models.model_from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, RecursionError) as error:
        raise NoArchitecture(
            f"Expected an architecture that Keras {keras.__version__} can make in {name}. Received: "
            f"{one_line(str(error))}. Pass the model."
        ) from error
    if not isinstance(model, keras.Model):
        raise NoArchitecture(
            f"Expected a model in {name}. Received: a {type(model).__name__}. Pass the model."
        )
    return model


def _foreign(value: Any, depth: int) -> list[str]:
    """Returns the names outside of Keras that a description refers to: code that is not here, or would be run."""
    if depth > _DEEPEST:
        return ["a structure that is too deep"]
    if isinstance(value, list):
        return [name for item in value for name in _foreign(item, depth + 1)]
    if not isinstance(value, dict):
        return []
    found = [name for item in value.values() for name in _foreign(item, depth + 1)]
    if "class_name" not in value:
        return found
    name, module = str(value["class_name"]), value.get("module")
    # Names with underscores are data; `function` stands for one of Keras by its name.
    plain = (name.startswith("__") and name != "__lambda__") or (name, module) == ("function", "builtins")
    of_keras = (
        isinstance(module, str) and module.split(".")[0] == "keras" and name not in ("__lambda__", "Lambda")
    )
    if not plain and not of_keras:
        found.append(".".join(str(part) for part in (module, value["class_name"]) if part))
    return found
