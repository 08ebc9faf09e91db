"""TensorFlow's collectives, as a way to give bytes to all workers.

They run on the CPU device of each worker, over the connections that train a model there. They have keys of their own: a
strategy counts its keys from 1, on every worker alike, and these are not counted. So training runs the same collectives
after an exchange as without one. An instance key stands for one length of the data, since TensorFlow keeps the shape
that it was first used with; it may be used many times, as by the steps of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_preempt.process.threads import call_within

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

GROUP_KEY = 1 << 30
"""Far from the keys of strategies, which count from 1."""

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

        Raises tf.errors.OpError if a worker is gone, has failed or is late.
        """
        if not self._order:
            # TensorFlow sorts its tasks by name, so that 10 comes before 2.
            numbers = self._gathered(np.array([self._member], _ELEMENT).view(np.uint8))
            self._order = [int(number.view(_ELEMENT)[0]) for number in numbers]
        given = dict(zip(self._order, self._gathered(data), strict=True))
        return [given[member] for member in range(self._members)]

    def _gathered(self, data: Bytes) -> list[Bytes]:

        def gathered() -> Bytes:
            # Waits for the value too, where operations are asynchronous.
            return np.asarray(gather(data, self._members)).view(np.uint8)

        try:
            answer = call_within(self._patience, gathered, "keras_preempt-gather")
        except TimeoutError:
            raise tf.errors.UnavailableError(
                None,
                None,
                f"Expected all {self._members} workers to exchange what they have read. Received: nothing for "
                f"{self._patience:.0f} s. One of them hangs, or the network is gone.",
            ) from None
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
