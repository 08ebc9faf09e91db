"""The state of a `keras.utils.PyDataset` at the beginning of an epoch, from which the epoch can be repeated.

As an epoch begins, Keras draws the order of its batches from Python's random state, and it calls the dataset at both
ends of each epoch. With the random state of that moment, and the dataset's own state if it has a pair of methods
`get_state()` and `set_state(state)`, a restart needs only the batches of the interrupted epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_preempt.backend.keras import data_code
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.process.words import counted
from keras_preempt.state import plain, randomness

_PREFIX = "input/epoch/"


def draws_globally(dataset: Any) -> str:
    """Returns where the code of a dataset draws from Python's or NumPy's global random state; empty for nowhere."""
    return data_code.global_draw(type(dataset).__getitem__, owner=dataset)


def begin_epoch(feed: InputFeed) -> None:
    """Keeps the state that is needed, just before Keras begins an epoch of the input."""
    if feed.py_dataset is not None:
        feed.at_epoch = _now(feed.py_dataset)
        feed.asked.begin_epoch()


def _now(dataset: Any) -> tuple[Any, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    captured = {"random": randomness.capture(arrays)}
    if plain.has_state_methods(dataset):
        captured["own"] = plain.encode(dataset.get_state(), arrays, "input/own")
    return captured, {name: np.array(array) for name, array in arrays.items()}


def capture(feed: InputFeed, arrays: dict[str, Array], *, inside: bool) -> dict[str, Any] | None:
    """Returns the state as JSON data, with its arrays added to `arrays`; None if the input is no such dataset.

    If an epoch is under way (`inside`), it is the state at its beginning, else that of now.
    """
    if feed.py_dataset is None or (inside and feed.at_epoch is None):
        return None
    state, own = feed.at_epoch if inside else _now(feed.py_dataset)
    arrays.update({f"{_PREFIX}{name}": array for name, array in own.items()})
    independent = feed.asked.independent
    if inside and plain.has_state_methods(feed.py_dataset):
        # All that it changes is in its state, except for the global random state.
        before, (now, arrays_now) = state, _now(feed.py_dataset)
        independent = (
            not draws_globally(feed.py_dataset)
            and before.get("own") == now.get("own")
            and all(
                np.array_equal(own[name], array, equal_nan=array.dtype.kind in "fc")
                for name, array in arrays_now.items()
                if name.startswith("input/own")
            )
        )
    return {"inside": inside, "state": state, "independent": independent}


def restore(
    feed: InputFeed, captured: Mapping[str, Any], arrays: Mapping[str, Array], leave_out: int = 0
) -> bool:
    """Puts the dataset into a captured state; inside an epoch, that epoch has then begun.

    Returns whether the dataset will not be asked for the first `leave_out` batches of the epoch; otherwise they have to
    be drawn.
    """
    own = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    state, asked = captured["state"], feed.asked
    if "own" in state and plain.has_state_methods(feed.py_dataset):
        feed.py_dataset.set_state(plain.decode(state["own"], own))
    asked.resume(bool(captured.get("independent")))  # Absent before release 0.3.
    if not captured["inside"]:
        return False
    feed.at_epoch = (state, own)
    randomness.restore(state["random"], own)
    asked.begin_epoch()
    return feed.begin_epoch_once(leave_out)


def dropped(feed: InputFeed) -> str:
    """Says that batches fetched before the first epoch were dropped; empty if there were none."""
    if not feed.dropped:
        return ""
    return (
        f"Keras' threads fetched {counted(feed.dropped, 'batch')} ahead while it built the model. They are dropped, so "
        "that each epoch takes each batch once. Without this callback Keras trains on them first, and loses others by "
        "chance at the end of the epochs. PyDataset(workers=1) has neither."
    )
