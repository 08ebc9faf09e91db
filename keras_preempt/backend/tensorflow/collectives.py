"""TensorFlow's collectives, as a way to give bytes to all workers.

They run on the CPU device of each worker, over the connections that train a model there. Their keys are their own: a
strategy counts its keys up from 1, on every worker alike, and nothing here counts with it. So training runs the same
collectives after an exchange as without one. A key of an instance stands for one length of the data, since TensorFlow
keeps the shape that it was first used with; it may be used again and again, as by the steps of training.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_preempt.process.threads import started

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

GROUP_KEY = 1 << 30
"""Far from those of strategies, which count from 1."""

_ELEMENT = np.dtype(np.int64)  # The largest of the types that can be gathered; bytes cannot.


class Collectives:
    """Gathers bytes from all workers; a call waits for the others for `patience` seconds. See `seam.Backend.gather`."""

    def __init__(self, member: int, members: int, patience: float) -> None:
        self._member = member
        self._members = members
        self._patience = patience
        self._order: list[int] = []

    def __call__(self, data: Bytes) -> Sequence[Bytes]:
        """Returns what each worker has given: equally many bytes on each, a multiple of 8.

        Raises:
            tf.errors.OpError: A worker is gone, or has failed, or did not come in time.
        """
        if not self._order:
            # TensorFlow sorts its tasks by name, so that 10 comes before 2.
            numbers = self._gathered(np.array([self._member], _ELEMENT).view(np.uint8))
            self._order = [int(number.view(_ELEMENT)[0]) for number in numbers]
        given = dict(zip(self._order, self._gathered(data), strict=True))
        return [given[member] for member in range(self._members)]

    def _gathered(self, data: Bytes) -> list[Bytes]:
        """Waits in a thread of its own, which is left behind where TensorFlow does not come back from a worker."""
        answers: queue.SimpleQueue[Bytes | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                # Waits for the value too, where operations are asynchronous.
                answers.put(np.asarray(gather(data, self._members)).view(np.uint8))
            except BaseException as error:  # Raised again by the caller.
                answers.put(error)

        if started(run, "keras_preempt-gather") is None:
            run()
        try:
            answer = answers.get(timeout=self._patience)
        except queue.Empty:
            raise tf.errors.UnavailableError(
                None,
                None,
                f"Expected all {self._members} workers to exchange what they have read. Received: nothing for "
                f"{self._patience:.0f} s. One of them hangs, or the network is gone.",
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return list(answer.reshape(self._members, len(data)))


def gather(data: Bytes, members: int) -> tf.Tensor:
    """Runs one collective: a row for each worker, in TensorFlow's order."""
    row = data.view(_ELEMENT)[np.newaxis]
    with tf.device("CPU:0"):
        return tf.raw_ops.CollectiveGatherV2(
            input=row,
            group_size=members,
            group_key=GROUP_KEY,
            instance_key=row.size,
            ordering_token=[],
            communication_hint="ring",
        )
