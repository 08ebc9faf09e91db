"""Where the training input stands, and how to get there again.

Three ways; the checkpoint says which. The *state* of the iterator, which TensorFlow can save for a plain
tf.data pipeline on one device: exact, and nothing is drawn twice. Near the end of an epoch that state
lacks the reshuffling of the epochs to come; then the state that the iterator had when it was *new*, from which
the batches of the epoch are drawn again and dropped. Elsewhere a *replay* from the beginning: the same number
of iterators is made, and the batches drawn from the last one are drawn again; exact if the pipeline gives
the same elements again (seeded shuffles), at the cost of its own running time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_preempt.keras_internals import InputFeed
from keras_preempt.tensorflow_internals import (
    iterator_state,
    keeps_every_shuffle,
    reshuffles_while_drawn,
    restore_iterator,
    unseeded_shuffles,
)

logger = logging.getLogger("keras_preempt")

STATE_LIMIT = 64 * 2**20
"""Bytes. A larger state (a shuffle buffer full of images) is left out: it would cost the grace period more
than the replay costs the restart."""

_STATE = "input/state"
_UNTOUCHED = "input/untouched"


def watch(feed: InputFeed) -> None:
    """Keeps the state of each new iterator of the feed: a few kilobytes, once an epoch."""
    feed.look = iterator_state


def promise(feed: InputFeed) -> tuple[bool, str]:
    """Says before training how exactly the input will continue after a restart.

    Returns:
        Whether it will be exact as far as can be seen, and why or why not, in words.
    """
    dataset = feed.undistributed
    unseeded = 0 if dataset is None else unseeded_shuffles(dataset)
    if unseeded:
        return False, (
            f"{unseeded} shuffle(s) of the training data have no seed, so that a restart cannot repeat the "
            "order of the epochs after it. Pass shuffle(..., seed=...), or call "
            "keras.utils.set_random_seed before the dataset is made"
        )
    if isinstance(feed.dataset, tf.data.Dataset):
        return True, "from the saved state of its iterator, or by replay where TensorFlow cannot save that"
    if feed.batches is None:
        return False, (
            "the length of the training data is not known, and with several replicas a restart at the very end of "
            "an epoch of such data can shuffle the epochs after it differently. Tell the length, by "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass steps_per_epoch"
        )
    return (
        True,
        "by replay: the batches already used are drawn again, in the same order if nothing in it is random",
    )


def capture(feed: InputFeed, position: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the input's position as JSON data, with the iterator's state added to `arrays` if it has one."""
    captured: dict[str, Any] = {"position": dict(position), "way": "replay"}
    state = None if feed.live is None or feed.untouched is None else iterator_state(feed.live)
    if state is None:
        return captured
    if not keeps_every_shuffle(state, feed.dataset):
        if not keeps_every_shuffle(feed.untouched, feed.dataset):
            return captured
        captured["way"] = "new"
        arrays[_UNTOUCHED] = np.frombuffer(feed.untouched, np.uint8)
    elif len(state) <= STATE_LIMIT:
        captured["way"] = "state"
        arrays[_STATE] = np.frombuffer(state, np.uint8)
        arrays[_UNTOUCHED] = np.frombuffer(feed.untouched, np.uint8)
    return captured


def restore(
    feed: InputFeed, captured: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, batch: int | None
) -> str:
    """Makes the feed go on from a captured position.

    Args:
        feed: The input of the fit that has just begun.
        captured: From `capture`.
        arrays: The arrays beside it.
        batch: The step of the epoch to go on with; None if the position is not inside an epoch's training.

    Returns:
        How it was done, in words.

    Raises:
        ValueError: The saved state does not fit the pipeline, or the pipeline ends before the position.
    """
    position = captured["position"]
    made, drawn = int(position["iterators"]), int(position["batches"])
    if made == 0:
        feed.resume(position, None, batch=None)
        return "nothing was drawn yet"
    also_draw = feed.undistributed is None or reshuffles_while_drawn(feed.undistributed)
    draws = drawn if batch is not None or position["current"] or also_draw else 0
    # An execution of several steps may have drawn less than it was asked for, but not nothing.
    required = 0 if batch is None else drawn - feed.steps_per_execution + 1
    draws_before = 0
    if captured["way"] in ("state", "new"):
        live = feed.new()
        feed.untouched = arrays[_UNTOUCHED].tobytes()
        if captured["way"] == "state":
            restore_iterator(live, arrays[_STATE].tobytes())
            how = "from the iterator's saved state"
        else:
            restore_iterator(live, feed.untouched)
            _draw(live, draws, required)
            how = f"from the state of the epoch's new iterator and {draws} batches drawn again"
    else:
        live = feed.new()
        for batches in position["drawn_before"][: made - 1]:
            if also_draw:
                _draw(live, int(batches), required=0)
                draws_before += int(batches)
            live = feed.new()
        _draw(live, draws, required)
        how = f"by replay of {made} iterators and {draws_before + draws} batches; exact if its shuffles are seeded"
    feed.resume(position, live, batch=batch)
    return how


def _draw(iterator: Any, batches: int, required: int) -> None:
    """Draws batches and drops them; stops early where the pipeline ends after the required ones."""
    for index in range(batches):
        if next(iterator, None) is not None:
            continue
        if index < required:
            raise ValueError(
                f"Expected an input pipeline of at least {required} batches, as it was when the checkpoint was "
                f"written. Received: one that ended after {index}. Train on the same data, or in another "
                "directory."
            )
        return
