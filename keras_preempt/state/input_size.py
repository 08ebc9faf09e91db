"""How large the state of the input's iterator is: whether it is worth a save, before all of it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from keras_preempt.backend import pipelines
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.process.words import size_in_words

STATE_LIMIT = 64 * 2**20
"""The most bytes of a state that is saved. A larger one (a shuffle buffer full of images) would cost the grace period
more than the replay costs the restart."""

ELEMENT_LIMIT = 50_000
"""The most elements in shuffle buffers whose state is saved. TensorFlow writes them one by one, so many small ones take
as long as few large ones."""

UNKNOWN_ELEMENT = 64 * 2**10
"""The assumed bytes of an element in a shuffle buffer whose size cannot be told, such as a record from a file."""


@dataclass(frozen=True)
class StateLimit:
    """How large a state of the input's iterator may be that is saved."""

    size: float  # Bytes.
    elements: float  # Elements in shuffle buffers and caches.
    replays: bool = False  # None is saved at all.


def limit_of(input_state: object = "auto") -> StateLimit:
    """Turns the argument `input_state` ("auto", "replay", or the most bytes of a state) into a limit."""
    if isinstance(input_state, str) and input_state == "auto":
        return StateLimit(STATE_LIMIT, ELEMENT_LIMIT)
    if isinstance(input_state, str) and input_state == "replay":
        return StateLimit(0, 0, replays=True)
    if isinstance(input_state, int) and not isinstance(input_state, bool) and input_state > 0:
        return StateLimit(input_state, math.inf)
    raise ValueError(
        "Expected input_state to be 'auto', 'replay', or the most bytes that the state of the input may have in a "
        f"checkpoint, such as 2 * 10**9. Received: {input_state!r}."
    )


_WRITTEN_AT_LEAST, _WRITTEN_EACH, _WRITTEN_RATE = 5e-3, 15e-6, 50e6
"""How fast TensorFlow is expected to write a state: seconds at least, seconds an element, bytes a second."""


def too_much(feed: InputFeed, *, caches: bool = False) -> str | None:
    """Returns why the state is not even asked for, in words: its size is known only once all of it is written.

    Caches in memory count as well if `caches` is true.
    """
    limit = feed.state_limit or limit_of()
    if limit.replays:
        return 'input_state is "replay"'
    elements, size = _held(feed, caches=caches)
    if elements <= limit.elements and size <= limit.size:
        return None
    if elements == math.inf:
        return "it has a cache of unknown length"
    kind = "shuffles and caches" if caches else "shuffles"
    held = f"{elements:.0f} elements, about {size_in_words(size)}"
    return f"its {kind} hold up to {held}, which takes too long to save (see input_state)"


def _held(feed: InputFeed, *, caches: bool) -> tuple[float, float]:
    """Returns how many elements the state of an iterator holds at most, infinite if unknown, and their bytes."""
    held: list[tuple[int | None, int | None]] = []
    for pipeline in feed.pipelines:
        held += pipelines.shuffle_buffers(pipeline)
        held += pipelines.held_elements(pipeline) if caches else ()
    counts = [
        (math.inf if count is None else count, UNKNOWN_ELEMENT if each is None else each)
        for count, each in held
    ]
    return sum(count for count, _ in counts), sum(count * each for count, each in counts if count)


def expected_seconds(feed: InputFeed) -> float:
    """Returns how long TensorFlow is expected to write a state of the iterator, before it has written one."""
    elements, size = _held(feed, caches=True)
    return _WRITTEN_AT_LEAST + elements * _WRITTEN_EACH + size / _WRITTEN_RATE
