"""The notice that TensorFlow itself leaves in the coordination service.

Creating a strategy for a cluster installs a C++ handler of TensorFlow's, which turns SIGTERM into the key
TF_DEFAULT_PREEMPTION_NOTICE_KEY = "/job:worker/task:N". This is how a notice arrives where Python may not
install a handler: when `fit` is called from a thread other than the main one, and before `fit` has begun.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY
from keras_preempt.notices import Notice, OnNotice
from keras_preempt.process.words import counted

SOURCE = "coordination key"

NOBODY = "keras_preempt/nobody"
"""What stands under a key for the moment in which somebody looks at it, or stops waiting for it."""

_REASON = "TensorFlow's notice for "
_STOP_LIMIT = 5.0  # seconds
_PAUSE = 0.05  # seconds, within which whoever has set a key to NOBODY deletes it again


def task_named_by(notice: Notice) -> str | None:
    """The task that a notice of this source is about, such as "/job:worker/task:1"; None for another source."""
    return notice.reason.removeprefix(_REASON) if notice.source == SOURCE else None


def notice_of(task: str) -> Notice:
    """A notice, received now, that a task such as "/job:worker/task:1" is about to be ended."""
    return Notice(SOURCE, f"{_REASON}{task}", time.time())


def announcement(workers: int, notice: Notice, left: str) -> str:
    """What a notice to one of several remote workers, or to their coordinator, means; `left` is such as " in 30 s"."""
    task = task_named_by(notice)
    who = (
        f"the coordinator of {counted(workers, 'remote worker')}" if task is None else f"remote worker {task}"
    )
    saves = "The coordinator saves when the execution in flight is over."
    return f"{notice.reason}: {who} is about to be ended{left}. {saves}"


class KeyWatch(abc.ABC):
    """Waits in a thread for a key of the coordination service, in one blocking get that only the key itself can end.

    So `stop` sets the key for a moment, to `NOBODY`: every waiting thread of the cluster wakes, the stopped one ends,
    and the others wait again. `on_lost` is called if the service fails before that.
    """

    def __init__(
        self, coordinator: Coordinator, key: str, thread: str, on_lost: Callable[[], None] | None = None
    ) -> None:
        self._coordinator = coordinator
        self._key = key
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, name=thread, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; nothing is heard after this. Can be called twice."""
        self._stopped.set()
        limit = time.monotonic() + _STOP_LIMIT
        try:
            # Repeatedly: another member that stops may insert and delete the key at the same time.
            while self._thread.is_alive() and time.monotonic() < limit:
                inserted = self._coordinator.put_if_absent(self._key, NOBODY)
                self._thread.join(timeout=0.2)
                if inserted:
                    self._coordinator.delete(self._key)
        except CoordinationLost:
            self._thread.join(timeout=1)  # The service has failed, and with it the get.

    @abc.abstractmethod
    def _hear(self, value: str) -> bool:
        """Takes the value of the key, unless this was stopped; returns whether to wait no longer."""

    def _wait(self) -> None:
        while not self._stopped.is_set():
            try:
                value = self._coordinator.wait_for(self._key, timeout=None)
            except CoordinationLost:
                if self._on_lost is not None and not self._stopped.is_set():
                    self._on_lost()
                return
            if value != NOBODY and (self._stopped.is_set() or self._hear(value)):
                return
            self._stopped.wait(_PAUSE)


class CoordinationKeyNotices(KeyWatch):
    def __init__(
        self, coordinator: Coordinator, on_notice: OnNotice, on_lost: Callable[[], None] | None = None
    ) -> None:
        super().__init__(coordinator, PREEMPTION_NOTICE_KEY, "keras_preempt-notice-key", on_lost)
        self._on_notice = on_notice

    def _hear(self, value: str) -> bool:
        self._on_notice(notice_of(value))
        return True
