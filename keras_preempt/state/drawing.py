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
    """Draws and drops that many batches from each iterator: `live` and those made by `following`; returns the last one.

    An iterator may end before that, but `ValueError` is raised if the last one has less than the `required` batches.
    `left` is called when nothing more is drawn from an iterator, before the next is made.
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
    """Raises `ValueError` if an input of which no batch is drawn again is known to be shorter than it was."""
    if feed.length is not None and feed.length < required:
        raise too_short(required, feed.length)


def too_short(required: int, found: int) -> ValueError:
    return ValueError(
        f"Expected an input pipeline of at least {counted(required, 'batch')}, as it was when the checkpoint was "
        f"written. Received: one that ended after {found}. Train on the same data, or in another directory."
    )


def drawn_again(batches: int, began: float) -> str:
    """Says how many batches were drawn again, and how long that took since `began`, on the monotonic clock."""
    if not batches:
        return "no batch drawn again"
    return f"{counted(batches, 'batch')} drawn again in {time.monotonic() - began:.1f} s"
