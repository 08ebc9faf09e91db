"""The state of a `keras.utils.PyDataset` at the beginning of an epoch, from which the epoch can be repeated.

Keras asks it for its batches in an order that it draws from Python's random state as the epoch begins, and calls it at
both ends of each epoch. With the random state of that moment, and the dataset's own state if it has a pair of methods
`get_state()` and `set_state(state)`, a restart needs only the batches of the interrupted epoch.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras import py_batches
from keras_preempt.backend.keras.input_feed import InputFeed, changes_itself
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state import plain, randomness


def keeps_its_state(dataset: Any) -> bool:
    """Whether the dataset has the pair of methods."""
    return callable(getattr(dataset, "get_state", None)) and callable(getattr(dataset, "set_state", None))


def begin_epoch(feed: InputFeed) -> None:
    """Keeps the state that is needed, just before Keras begins an epoch of the input."""
    if feed.py_dataset is not None:
        feed.at_epoch = _now(feed.py_dataset)


def _now(dataset: Any) -> tuple[Any, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    captured = {"random": randomness.capture(arrays)}
    if keeps_its_state(dataset):
        captured["own"] = plain.encode(dataset.get_state(), arrays, "input/own")
    return captured, {name: np.array(array) for name, array in arrays.items()}


def capture(feed: InputFeed, arrays: dict[str, Array], *, inside: bool) -> dict[str, Any] | None:
    """Returns the state as JSON data, with its arrays added to `arrays`.

    Args:
        feed: The input of the fit.
        arrays: Gets the arrays.
        inside: Whether an epoch is under way: then it is the state at its beginning, else that of now.

    Returns:
        None if the input is no such dataset.
    """
    if feed.py_dataset is None or (inside and feed.at_epoch is None):
        return None
    state, own = feed.at_epoch if inside else _now(feed.py_dataset)
    arrays.update({f"input/epoch/{name}": array for name, array in own.items()})
    return {"inside": inside, "state": state}


def restore(
    feed: InputFeed, captured: Mapping[str, Any], arrays: Mapping[str, Array], batch: int = 0
) -> bool:
    """Puts the dataset into a captured state; inside an epoch, that epoch has then begun.

    Args:
        feed: The input of the fit.
        captured: From `capture`.
        arrays: The arrays beside it.
        batch: How many batches of the epoch are not wanted again.

    Returns:
        Whether the dataset will not be asked for these; otherwise they have to be drawn.
    """
    batch = batch if batch and is_indexed(feed) else 0
    prefix = "input/epoch/"
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    state = captured["state"]
    if "own" in state and keeps_its_state(feed.py_dataset):
        feed.py_dataset.set_state(plain.decode(state["own"], own))
    if captured["inside"]:
        feed.at_epoch = (state, own)
        randomness.restore(state["random"], own)
        return feed.begin_epoch_once(batch)
    return False


def doubt(feed: InputFeed) -> tuple[str, str] | None:
    """Returns why a restart may see other data, and what to do about it; None if nothing was found.

    It asks for one batch twice, which must not make a difference.
    """
    if (name := feed.changes_itself) and not (
        feed.py_dataset is not None and keeps_its_state(feed.py_dataset)
    ):
        return (
            f"{name} has {_HOOKS}",
            "Give it get_state(), which returns plain data, and set_state(state); and do not pass steps_per_epoch",
        )
    if py_batches.pass_goes_on(feed.epoch_iterator):
        return (
            "with steps_per_epoch, Keras starts the workers of a PyDataset again in each epoch, behind as many batches "
            "as they happen to have fetched",
            "Leave out steps_per_epoch, or let the PyDataset have workers=1",
        )
    if feed.py_dataset is None or _repeats(feed) is not Repeats.OTHER:
        return None
    return _gives_other_batches(feed.py_dataset)


def doubt_of_validation(dataset: keras.utils.PyDataset) -> tuple[str, str] | None:
    """Returns why a restart may validate on other data, like `doubt`.

    Args:
        dataset: The `validation_data` of a fit, of which no state is kept.
    """
    if name := changes_itself(dataset):
        return (
            f"{name} has {_HOOKS}, also of validation data with get_state()",
            "Let each batch of the validation data depend on its index alone",
        )
    return _gives_other_batches(dataset) if _asked_twice(dataset) is Repeats.OTHER else None


_HOOKS = "on_epoch_begin or on_epoch_end, and what these change is lost in a restart"


def _gives_other_batches(dataset: Any) -> tuple[str, str]:
    return (
        f"{type(dataset).__name__} gave two different batches when it was asked for the first one twice, so "
        "that a restart cannot ask for the same ones again",
        "Seed what is random in __getitem__ with its index and the number of the epoch, as in "
        "np.random.default_rng((epoch, index))",
    )


class Repeats(enum.Enum):
    """What a dataset gives when it is asked for a batch again."""

    SAME = "the same"
    OTHER = "something else"
    UNKNOWN = "what cannot be compared"


def is_indexed(feed: InputFeed) -> bool:
    """Whether a batch of the dataset of a feed does not depend on which ones were asked for before it."""
    return _repeats(feed) is Repeats.SAME


def _repeats(feed: InputFeed) -> Repeats:
    """Asks for the first batch twice, once in a fit."""
    if feed.repeats is None:
        feed.repeats = _asked_twice(feed.py_dataset)
    return Repeats(feed.repeats)


def _asked_twice(dataset: Any) -> Repeats:
    python, numpy = random.getstate(), np.random.get_state()
    first, second = (_content(dataset) for _ in range(2))
    random.setstate(python)
    np.random.set_state(numpy)
    if first is None or second is None:
        return Repeats.UNKNOWN
    return Repeats.SAME if first == second else Repeats.OTHER


def _content(dataset: Any) -> list[Any] | None:
    """Returns what the first batch and the dataset's own state hold; None if that cannot be compared."""
    arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(dataset[0]) if leaf is not None]
    if any(array.dtype == object for array in arrays):
        return None
    kept: dict[str, Array] = {}
    own = plain.encode(dataset.get_state(), kept, "own") if keeps_its_state(dataset) else None
    return [own, *(array.tobytes() for array in (*arrays, *kept.values()))]
