"""The state of a Grain iterator in a checkpoint: where training stands in data that comes from Grain."""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Mapping
from typing import Any

from keras_preempt.backend.keras.grain_iterators import GrainState
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.report.progress import progress
from keras_preempt.state import plain
from keras_preempt.state.drawing import drawn_again, too_short

logger = logging.getLogger("keras_preempt")

_PATH = "input/grain"


def capture(
    feed: InputFeed, position: Mapping[str, Any], arrays: dict[str, Array], *, inside: bool
) -> dict[str, Any] | None:
    """Returns the state of the live iterator as JSON data, with its arrays added to `arrays`.

    None if the data does not come from Grain, or if its iterator has no state that can be saved.
    """
    if feed.grain is None:
        return None
    found = feed.grain.state_at(int(position["batches"]) if inside or position["current"] else 0)
    if found is None:
        return None
    # The state of a DataLoader is bytes, which hold JSON.
    state = found.state.decode() if isinstance(found.state, bytes) else found.state
    own: dict[str, Array] = {}
    try:
        encoded = plain.encode(state, own, _PATH)
    except TypeError as error:
        logger.info("The state of the Grain iterator is left out of the checkpoint: %s", error)
        return None
    arrays.update(own)
    return {
        "batches": found.batches,
        "state": encoded,
        "bytes": isinstance(found.state, bytes),
        "version": _version(),
    }


def restore(
    feed: InputFeed,
    captured: Mapping[str, Any] | None,
    arrays: Mapping[str, Array],
    batches: int,
    required: int,
) -> str | None:
    """Has the next iterator of the feed begin after so many batches; returns how, in words, or None if it cannot.

    `ValueError` is raised if there are fewer batches than `required`.
    """
    if feed.grain is None or captured is None:
        return None
    began = time.monotonic()
    saved = GrainState(int(captured["batches"]), plain.decode(captured["state"], arrays))
    if captured["bytes"]:
        saved = GrainState(saved.batches, saved.state.encode())
    if saved.batches > batches:
        return None
    if saved.state is not None and captured["version"] != _version():
        logger.info(
            "The state of the Grain iterator was saved by Grain %s, and this is %s: the input is replayed.",
            captured["version"],
            _version(),
        )
        return None
    again = batches - saved.batches
    try:
        with progress("Drawing Grain batches again", total=again, unit="batches") as step:
            there = feed.grain.begin_at(saved, batches, step)
    except Exception as error:  # Grain has errors of its own for a state that does not fit.
        logger.warning(
            "The saved state of the Grain iterator cannot be used (%s): the input is replayed.", error
        )
        return None
    if there < required:
        raise too_short(required, there)
    return f"from the state of its Grain iterator, {drawn_again(again, began)}"


def _version() -> str:
    for name in ("grain", "grain-nightly"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
