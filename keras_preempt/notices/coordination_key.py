"""The notice that TensorFlow itself leaves in the coordination service.

Creating a strategy for a cluster installs a C++ handler of TensorFlow's, which turns SIGTERM into the key
TF_DEFAULT_PREEMPTION_NOTICE_KEY = "/job:worker/task:N". This is how a notice arrives where Python may not
install a handler: when `fit` is called from a thread other than the main one, and before `fit` has begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY
from keras_preempt.notices.notice import Notice
from keras_preempt.process.words import counted

SOURCE = "coordination key"


_REASON = "TensorFlow's notice for "


def task_named_by(notice: Notice) -> str | None:
    """The task that a notice of this source is about, such as "/job:worker/task:1"; None for another source."""
    return notice.reason.removeprefix(_REASON) if notice.source == SOURCE else None


def notice_of(task: str) -> Notice:
    """A notice, received now, that a task such as "/job:worker/task:1" is about to be ended."""
    return Notice(SOURCE, f"{_REASON}{task}", time.time())


def announcement(workers: int, notice: Notice, left: str) -> str:
    """Returns what a notice to a remote worker, or to the coordinator of some, means, in words.

    Args:
        workers: How many remote workers there are.
        notice: The notice.
        left: How much time is left, such as " in 30 s".
    """
    task = task_named_by(notice)
    who = (
        f"the coordinator of {counted(workers, 'remote worker')}" if task is None else f"remote worker {task}"
    )
    saves = "The coordinator saves when the execution in flight is over."
    return f"{notice.reason}: {who} is about to be ended{left}. {saves}"


def names_member(notice: Notice, task: str) -> bool:
    """Whether the notice is about this task, such as "/job:worker/task:1"."""
    return task_named_by(notice) == task


_RELEASED = "keras_preempt/released"
_STOP_LIMIT = 5.0  # seconds


class CoordinationKeyNotices:
    """Waits for the key in one blocking get, which only the key itself can end.

    So `stop` inserts the key for a moment, with a value that is not a task: every waiting thread of the
    cluster wakes, the one that was stopped ends, and the others wait again.

    Args:
        coordinator: Where the key appears.
        on_notice: Called in the waiting thread with the notice.
        on_lost: Called in the waiting thread if the service fails before `stop` is called.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        on_notice: Callable[[Notice], None],
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="keras_preempt-notice-key", daemon=True)

    def start(self) -> None:
        """Starts the waiting thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; no notice is delivered after this. Can be called twice."""
        self._stopped.set()
        limit = time.monotonic() + _STOP_LIMIT
        try:
            # Repeatedly: another member that stops may insert and delete the key at the same time.
            while self._thread.is_alive() and time.monotonic() < limit:
                inserted = self._coordinator.put_if_absent(PREEMPTION_NOTICE_KEY, _RELEASED)
                self._thread.join(timeout=0.2)
                if inserted:
                    self._coordinator.delete(PREEMPTION_NOTICE_KEY)
        except CoordinationLost:
            self._thread.join(timeout=1)  # The service has failed, and with it the get.

    def _wait(self) -> None:
        while not self._stopped.is_set():
            try:
                value = self._coordinator.wait_for(PREEMPTION_NOTICE_KEY, timeout=None)
            except CoordinationLost:
                if self._on_lost is not None and not self._stopped.is_set():
                    self._on_lost()
                return
            if value != _RELEASED:
                if not self._stopped.is_set():
                    self._on_notice(notice_of(value))
                return
            self._stopped.wait(0.05)  # Another member is stopping; its deletion of the key is on the way.
