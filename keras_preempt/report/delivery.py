"""Gives events to a function of the user, in a thread of its own, so that neither its errors nor its time matter."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from keras_preempt.process.threads import started
from keras_preempt.report.event import Event

logger = logging.getLogger("keras_preempt")

MOST_WAITING = 1000
"""Events that wait for the function; of more, the newest are dropped. A fit has a dozen, and a few for each save."""

DRAIN_SECONDS = 5.0
"""Seconds that the end of a fit waits for the function to take what is left; less if the machine goes earlier."""

OnEvent = Callable[[Event], object]


def check_on_event(on_event: object) -> None:
    """Raises `ValueError` unless `on_event` is None or a plain function of one argument."""
    if on_event is None:
        return
    if not callable(on_event):
        raise ValueError(
            f"Expected on_event to be a function of one argument, the event. Received: {on_event!r}."
        )
    if inspect.iscoroutinefunction(on_event) or inspect.isgeneratorfunction(on_event):
        raise ValueError(
            f"Expected on_event to be a plain function. Received: {on_event!r}, of which a call only makes a coroutine "
            "or generator, and runs nothing."
        )
    try:
        inspect.signature(on_event).bind(None)
    except ValueError:  # A function in C that does not say what it takes.
        return
    except TypeError as error:
        raise ValueError(
            f"Expected on_event to be a function of one argument, the event. Received: {on_event!r}, called with one: "
            f"{error}."
        ) from None


class Delivery:
    """Calls a function with one event after the other, in their order, until `stop`. The thread begins with the first.

    What the function raises is logged once.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._failed = self._stopped = self._abandoned = False
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def put(self, event: Event) -> None:
        """Hands an event to the thread. Never waits for the function."""
        if os.getpid() != self._owner:  # The thread is not in a forked child.
            return
        with self._changed:
            if self._stopped:
                return
            if len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning(
                        "on_event is too slow: %d events wait for it, and further ones are dropped.",
                        MOST_WAITING,
                    )
                return
            self._waiting.append(event)
            self._thread = self._thread or started(self._run, "keras_preempt-events")
            self._changed.notify_all()

    def stop(self, left: float | None) -> None:
        """Ends the thread once the function has taken everything, or `left` seconds are over. Can be called twice."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread, waiting = self._thread, len(self._waiting)
        if thread is None and waiting:
            logger.warning("on_event does not get %d events: no thread could be started.", waiting)
        if thread is None or thread is threading.current_thread():
            return
        patience = DRAIN_SECONDS if left is None else max(0.0, min(DRAIN_SECONDS, left))
        thread.join(patience)
        with self._changed:
            missed = len(self._waiting)
            if thread.is_alive() and not self._abandoned:
                logger.warning(
                    "on_event is still busy after %.0f s: it is not waited for, and %d further events are dropped.",
                    patience,
                    missed,
                )
            self._abandoned = True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._abandoned or not self._waiting:
                    return
                event = self._waiting.popleft()
            try:
                self._on_event(event)
            except BaseException:  # Whatever it is, also a SystemExit: training goes on.
                if not self._failed:
                    self._failed = True
                    logger.exception(
                        "on_event has failed at %r. Training is not touched by that; further errors are not shown.",
                        event.kind,
                    )
