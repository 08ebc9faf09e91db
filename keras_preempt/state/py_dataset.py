"""The state of a `keras.utils.PyDataset` at the beginning of an epoch, from which the epoch can be repeated.

Keras asks it for its batches in an order that it draws from Python's random state as the epoch begins, and calls it at
both ends of each epoch. With the random state of that moment, and the dataset's own state if it has a pair of methods
`get_state()` and `set_state(state)`, a restart needs only the batches of the interrupted epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras import batches_asked, py_batches
from keras_preempt.backend.keras.input_feed import InputFeed, changes_itself
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.process.words import counted
from keras_preempt.state import plain, randomness
from keras_preempt.state.python_data import doubt_of_batches


def keeps_its_state(dataset: Any) -> bool:
    """Whether the dataset has the pair of methods."""
    return callable(getattr(dataset, "get_state", None)) and callable(getattr(dataset, "set_state", None))


def begin_epoch(feed: InputFeed) -> None:
    """Keeps the state that is needed, just before Keras begins an epoch of the input."""
    if feed.py_dataset is not None:
        feed.at_epoch = _now(feed.py_dataset)
        batches_asked.of(feed.epoch_iterator).begin_epoch()


def end_epoch(feed: InputFeed) -> str:
    """Looks at the batches that training was given, just after an epoch of the input.

    Returns:
        Why a restart may see others, with what to do about it; empty if nothing was found, or it was said before.
    """
    if not _gave_others(feed) or keeps_its_state(feed.py_dataset):
        return ""
    if _is_of_keras(feed.py_dataset):
        return f"{_others(feed, 'epoch')}. {_OWN_CLASS}"
    return (
        f"{_others(feed, 'epoch')}. Seed what is random in __getitem__ with its index and the number of "
        "the epoch, as in np.random.default_rng((epoch, index)); or give the dataset get_state(), which returns plain "
        "data, and set_state(state)"
    )


def end_validation(feed: InputFeed) -> str:
    """Looks at the batches of a validation just after it, like `end_epoch`."""
    if not _gave_others(feed):
        return ""
    return f"{_others(feed, 'validation')}. Let each batch depend on its index alone"


def _gave_others(feed: InputFeed) -> bool:
    return (
        feed.py_dataset is not None
        and batches_asked.of(feed.epoch_iterator).end_epoch(feed.batches)
        and not feed.changes_itself
    )


def _others(feed: InputFeed, of: str) -> str:
    return (
        f"{type(feed.py_dataset).__name__} gave other batches in the first {of} than when Keras asked for the same "
        "ones before it, and a restart may lose what makes the difference"
    )


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
    independent = _independent(feed) if inside else batches_asked.of(feed.epoch_iterator).independent
    return {"inside": inside, "state": state, "independent": independent}


def _independent(feed: InputFeed) -> bool:
    """Whether batches of an epoch can be left out: what comes after them does not depend on them."""
    if not keeps_its_state(feed.py_dataset):
        return batches_asked.of(feed.epoch_iterator).independent
    # All that it changes is in its state, except for the global random state.
    if doubt_of_batches(feed.py_dataset) is not None:
        return False
    (before, arrays_before), (now, arrays_now) = feed.at_epoch, _now(feed.py_dataset)
    return before.get("own") == now.get("own") and all(
        np.array_equal(arrays_before[name], array, equal_nan=array.dtype.kind in "fc")
        for name, array in arrays_now.items()
        if name.startswith("input/own")
    )


def leaves_out(captured: Mapping[str, Any] | None, batch: int) -> bool:
    """Whether a restart need not draw the first batches of an epoch again.

    Args:
        captured: From `capture`.
        batch: How many there are.
    """
    return captured is not None and batch > 0 and bool(captured.get("independent"))


def restore(
    feed: InputFeed, captured: Mapping[str, Any], arrays: Mapping[str, Array], leave_out: int = 0
) -> bool:
    """Puts the dataset into a captured state; inside an epoch, that epoch has then begun.

    Args:
        feed: The input of the fit.
        captured: From `capture`.
        arrays: The arrays beside it.
        leave_out: How many batches of the epoch the dataset is not to be asked for; see `leaves_out`.

    Returns:
        Whether the dataset will not be asked for these; otherwise they have to be drawn.
    """
    prefix = "input/epoch/"
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    state = captured["state"]
    if "own" in state and keeps_its_state(feed.py_dataset):
        feed.py_dataset.set_state(plain.decode(state["own"], own))
    batches_asked.of(feed.epoch_iterator).resume(
        bool(captured.get("independent"))
    )  # Absent before release 0.3.
    if captured["inside"]:
        feed.at_epoch = (state, own)
        randomness.restore(state["random"], own)
        batches_asked.of(feed.epoch_iterator).begin_epoch()
        return feed.begin_epoch_once(leave_out)
    return False


def dropped(feed: InputFeed) -> str:
    """Says which batches were dropped that had been fetched before the first epoch; empty if none were."""
    if not feed.dropped:
        return ""
    return (
        f"Keras' threads fetched {counted(feed.dropped, 'batch')} ahead while it built the model. They are dropped, so "
        "that each epoch takes each batch once. Without this callback Keras trains on them first, and loses others by "
        "chance at the end of the epochs. PyDataset(workers=1) has neither."
    )


def doubt(feed: InputFeed) -> tuple[str, str] | None:
    """Returns why a restart may see other data, and what to do about it; None if nothing was found."""
    if (name := feed.changes_itself) and not (
        feed.py_dataset is not None and keeps_its_state(feed.py_dataset)
    ):
        if _is_of_keras(getattr(feed.epoch_iterator.data_adapter, "py_dataset", None)):
            return f"{name}, a class of Keras, has {_HOOKS}", _OWN_CLASS
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
    return None


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
    return doubt_of_batches(dataset)


def _is_of_keras(dataset: Any) -> bool:
    """Whether the class of a dataset is Keras' own, to which nobody adds methods, as that of `ImageDataGenerator`."""
    return type(dataset).__module__.startswith("keras.")


_OWN_CLASS = (
    "Make the batches in a keras.utils.PyDataset of your own, each from its index and the number of the epoch, or by "
    "tf.data"
)

_HOOKS = "on_epoch_begin or on_epoch_end, and what these change is lost in a restart"
