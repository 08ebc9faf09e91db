"""Batches that are drawn again and dropped, to bring an input to its position."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.process.words import counted
from keras_preempt.report.progress import progress


def draw(
    live: Any,
    draws: Sequence[int],
    required: int,
    following: Callable[[], Any],
    left: Callable[[], None] = lambda: None,
) -> Any:
    """Draws batches and drops them, from one iterator after the other.

    Args:
        live: The first iterator.
        draws: How many batches to draw from each; fewer where it ends.
        required: How many batches the last one must have.
        following: Makes the next iterator.
        left: Called before that, when nothing more is drawn from the one before.

    Returns:
        The last iterator.

    Raises:
        ValueError: The last one has fewer than required.
    """
    with progress("Replaying the input", total=sum(draws), unit="batches") as step:
        for number, batches in enumerate(draws):
            if number:
                left()
                live = following()
            for index in range(batches):
                if next(live, None) is None:
                    if number == len(draws) - 1 and index < required:
                        raise too_short(required, index)
                    step(batches - index)
                    break
                step()
    return live


def check_length(feed: InputFeed, required: int) -> None:
    """Makes sure that an input of which no batch is drawn again is as long as it was.

    Raises:
        ValueError: It is known to have fewer batches than required.
    """
    if feed.length is not None and feed.length < required:
        raise too_short(required, feed.length)


def too_short(required: int, found: int) -> ValueError:
    """Returns an error that says that the input has become shorter."""
    return ValueError(
        f"Expected an input pipeline of at least {counted(required, 'batch')}, as it was when the checkpoint was "
        f"written. Received: one that ended after {found}. Train on the same data, or in another directory."
    )


def drawn_again(batches: int, began: float) -> str:
    """Says how many batches were drawn again, and how long that took since `began`, of the monotonic clock."""
    if not batches:
        return "no batch drawn again"
    return f"{counted(batches, 'batch')} drawn again in {time.monotonic() - began:.1f} s"
