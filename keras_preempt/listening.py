"""Which sources of notices one fit listens to, and when they end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable

from keras_preempt.coordination import Coordinator
from keras_preempt.notices import Notice
from keras_preempt.notices.coordination_key import CoordinationKeyNotices, names_member
from keras_preempt.notices.signals import SignalNotices
from keras_preempt.place import Place
from keras_preempt.runtime import Runtime

logger = logging.getLogger("keras_preempt")


class Listening:
    """The sources of one fit.

    Args:
        runtime: Takes the notices.
        coordinator: Where TensorFlow leaves its own notice.
        place: Which process this is.
        signals: The signals that announce its end.
    """

    def __init__(
        self, runtime: Runtime, coordinator: Coordinator, place: Place, signals: Iterable[signal.Signals]
    ) -> None:
        self._runtime = runtime
        self._place = place
        self._sources: list[SignalNotices | CoordinationKeyNotices] = []
        clustered = place.members > 1
        if SignalNotices.possible():
            self._sources.append(SignalNotices(signals, runtime.notify, runtime.expect))
        elif not clustered:
            logger.warning(
                "fit runs outside the main thread of a single process, where Python cannot hear signals: a "
                "termination signal will NOT be heard. Call fit from the main thread."
            )
        if clustered:
            # Also beside the signals: what came before this fit went to TensorFlow's own handler, and the
            # key appears up to a second after the signal.
            self._sources.append(CoordinationKeyNotices(coordinator, self._about_a_task))
        for source in self._sources:
            source.start()

    def stop(self) -> None:
        """Ends all sources. Can be called twice."""
        for source in self._sources:
            source.stop()

    def _about_a_task(self, notice: Notice) -> None:
        if names_member(notice, self._place.task):
            self._runtime.notify(notice)
