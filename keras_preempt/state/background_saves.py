"""Saves that the callbacks of a fit have begun in the background, for which a process waits before it ends.

Callbacks wait for them in `on_train_end`, which a preempted fit never reaches. A save that is still being written when
Python ends fails, as Python starts no more threads. If it waits for other processes, it holds up theirs as well.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_preempt.backend.keras.callbacks import saves_in_background
from keras_preempt.backend.user_code import attributes, is_a
from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

SECONDS = 10.0
"""How long to wait where the time that is left is unknown."""

LONGEST = 60.0
"""How long to wait at most where a deadline is known."""

_UNTIL_DEADLINE = 5.0  # seconds that are left for what comes after
_QUIET_SECONDS = 1.0

_ORBAX_WAITS = ("wait_until_finished", "wait")
"""The methods that wait for an object of Orbax: those of its two interfaces."""


def wait(callbacks: Iterable[Any], left: float | None) -> None:
    """Waits until the saves in the background are made, as long as there is time: `left` seconds, None if unknown."""
    waits = [(type(each).__name__, call) for each in callbacks for call in _waits_of(each)]
    if not waits:
        return
    seconds = SECONDS if left is None else min(LONGEST, left - _UNTIL_DEADLINE)
    names = ", ".join(dict.fromkeys(name for name, _ in waits))
    thread = started(_each, "keras_preempt-background-saves", waits)
    if thread is None or seconds <= 0:
        logger.warning("What %s may still save in the background is not waited for.", names)
        return
    thread.join(min(_QUIET_SECONDS, seconds))
    if thread.is_alive():
        logger.warning("Waiting for at most %.0f s for what %s may save in the background.", seconds, names)
        thread.join(max(0.0, seconds - _QUIET_SECONDS))
    if thread.is_alive():
        logger.warning(
            "What %s does in the background is not over within %.0f s: this process leaves.", names, seconds
        )


def _each(waits: Iterable[tuple[str, Callable[[], object]]]) -> None:
    for name, call in waits:
        try:
            call()
        except Exception as error:  # Its own checkpoint is at stake, not the one of this package.
            logger.warning("What %s has saved in the background has failed: %r", name, error)


def _waits_of(callback: Any) -> Iterator[Callable[[], object]]:
    of_keras = saves_in_background(callback)
    if of_keras is not None:
        yield of_keras
        return
    for held in attributes(callback).values():
        kind = type(held)
        several = list(held.values() if kind is dict else held if kind in (list, tuple, set) else (held,))
        futures = [
            each
            for each in several
            if is_a(each, concurrent.futures.Future) and not concurrent.futures.Future.done(each)
        ]
        if futures:
            yield functools.partial(concurrent.futures.wait, futures)
        for each in several:
            if is_a(each, threading.Thread):
                if not each.daemon and threading.Thread.is_alive(each):
                    yield functools.partial(threading.Thread.join, each)
            elif type(each).__module__.partition(".")[0] == "orbax":
                found = next((name for name in _ORBAX_WAITS if hasattr(type(each), name)), None)
                if found is not None:
                    yield getattr(each, found)
