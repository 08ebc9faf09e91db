"""`PreemptionWatcher`: whether a worker was preempted, for a program that reconnects and continues."""

from __future__ import annotations

import weakref
from typing import NoReturn

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.backend.seam import backend
from keras_preempt.notices import Notice
from keras_preempt.notices.coordination_key import CoordinationKeyNotices, task_named_by
from keras_preempt.notices.detection import KnownOnce
from keras_preempt.notices.platform import Platform
from keras_preempt.process import log


class PreemptionWatcher:
    """Learns of the preemption of a worker through TensorFlow's coordination service.

    A worker that gets SIGTERM leaves a key there, on every platform; this waits for the key in one thread, which costs
    nothing. It replaces ``tf.distribute.experimental.PreemptionWatcher``, which does nothing outside of Google. Create
    it after connecting to the cluster or creating the strategy; without a coordination service it does nothing.

    Attributes:
        preemption_message: The task that was preempted, such as "/job:worker/task:1"; None if none was.
        platform: Where this process runs, as far as that can be found.

    Example:
        >>> while True:
        ...     keras.utils.clear_session()  # Forget what was made for workers that are gone.
        ...     strategy = connect()  # tf.config.experimental_connect_to_cluster(...), then the strategy
        ...     with PreemptionWatcher() as watcher:
        ...         try:
        ...             train(strategy)
        ...             break
        ...         except Exception:
        ...             if watcher.preemption_message is None:
        ...                 raise
        ...     watcher.block_until_worker_exit(timeout=600)
    """

    def __init__(self) -> None:
        log.show()
        self._detection = KnownOnce()
        self._workers = backend().remote_workers()
        # The waiting thread holds this rather than the watcher itself, which may be forgotten.
        self._heard: list[Notice] = []
        self._stop: weakref.finalize[[], PreemptionWatcher] | None = None
        try:
            keys = backend().notice_keys()
        except CoordinationLost:  # There is no coordination service.
            return
        source = CoordinationKeyNotices(keys, self._heard.append)
        source.start()
        # Also when the watcher is forgotten, and before the interpreter ends: a thread that waits in TensorFlow then
        # can take the process down.
        self._stop = weakref.finalize(self, source.stop)

    def __repr__(self) -> str:
        told = self.preemption_message
        return f"<PreemptionWatcher: {'nothing' if told is None else told} was preempted>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "Expected each process to have a PreemptionWatcher of its own. Received: a copy, as `copy` and `pickle` "
            "make one. Make the watcher in the process that watches."
        )

    def __enter__(self) -> PreemptionWatcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def preemption_message(self) -> str | None:
        """The task that was preempted, such as "/job:worker/task:1"; None if none was, as far as is known."""
        return task_named_by(self._heard[-1]) if self._heard else None

    @property
    def platform(self) -> Platform:
        """Where this process runs; found within a second at the first call."""
        platform = self._detection.result()
        return platform.for_tpu_coordinator() if self._workers else platform

    def check(self) -> None:
        """Raises an error if a worker was preempted; costs next to nothing.

        Raises:
            tf.errors.AbortedError: "Task ... was preempted.", as from TensorFlow's op CheckPreemption.
        """
        backend().errors.check_preemption(self.preemption_message)

    def block_until_worker_exit(self, timeout: float | None = None) -> bool:
        """Waits until the workers are gone, so that the program does not reconnect to them only to lose them again.

        Does nothing in a process that is connected to no remote workers. Can be called after `stop`.

        Args:
            timeout: In seconds; None waits for as long as it takes.

        Returns:
            Whether they are gone; without a timeout that is always so.
        """
        return self._workers.wait_until_gone(timeout)

    def stop(self) -> None:
        """Stops watching; `preemption_message` stays. Can be called twice."""
        self._detection.stop()
        if self._stop is not None:
            self._stop()
