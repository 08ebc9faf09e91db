"""Contestants that take turns in one thread, and what a turn of each takes of the processor."""

from __future__ import annotations

import gc
import inspect
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

Timer = Callable[[int], float]
"""Runs that many steps and returns the seconds that they took of the processor."""


def take_turns(
    contestants: Mapping[str, Timer], repetitions: int, steps: int, seed: int
) -> dict[str, list[float]]:
    """Returns nanoseconds per step of each turn, by contestant.

    Args:
        contestants: What to measure.
        repetitions: How often each takes its turn.
        steps: How many steps a turn has.
        seed: Shuffles the contestants anew in each repetition, so that none always follows the same other.
    """
    # The first turn of each warms up the caches.
    for timer in contestants.values():
        timer(steps)
    results: dict[str, list[float]] = {name: [] for name in contestants}
    order, draw = list(contestants), random.Random(seed)
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            draw.shuffle(order)
            for name in order:
                results[name].append(contestants[name](steps) / steps * 1e9)
    finally:
        gc.enable()
    return results


def running_container() -> Any:
    """Returns the list of callbacks of the fit that calls a callback, which calls this.

    Raises:
        RuntimeError: No fit does.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), keras.callbacks.CallbackList):
            return frame.f_locals["self"]
        frame = frame.f_back
    raise RuntimeError("Expected to be called by a CallbackList. Received: no such caller.")


def ours_of(container: Any) -> list[Any]:
    """Returns the callbacks that this package has in a fit's list of callbacks."""
    return [each for each in container.callbacks if type(each).__module__.startswith("keras_preempt")]


def hooks(callbacks: list[Any]) -> Timer:
    """Returns what drives the hooks of steps through Keras' CallbackList, as fit does."""
    container = keras.callbacks.CallbackList(callbacks)
    container._async_train = (
        False  # On JAX Keras may leave the second hook to another thread, at a cost of its own.
    )
    return driven(container)


def driven(container: Any) -> Timer:
    """Returns what drives the hooks of steps through a list of callbacks, such as that of a running fit."""

    def turn(steps: int) -> float:
        began = time.thread_time()
        for batch in range(steps):
            container.on_train_batch_begin(batch)
            container.on_train_batch_end(batch, {})
        return time.thread_time() - began

    return turn


def calls(function: Callable[..., Any], *arguments: Any) -> Timer:
    """Returns what calls a function with the same arguments in every step."""

    def turn(steps: int) -> float:
        began = time.thread_time()
        for _ in range(steps):
            function(*arguments)
        return time.thread_time() - began

    return turn


def numbered_calls(function: Callable[[int], Any]) -> Timer:
    """Returns what calls a function with the number of the step, which goes on from turn to turn."""
    done = 0

    def turn(steps: int) -> float:
        nonlocal done
        numbers = range(done, done + steps)
        done += steps
        began = time.thread_time()
        for number in numbers:
            function(number)
        return time.thread_time() - began

    return turn


def nothing(*arguments: object) -> None:
    """A train step that does nothing."""
