"""Bytes that workers give each other by TensorFlow's collectives; what needs several processes: tests/cluster."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.seam import backend
from keras_preempt.backend.tensorflow import collectives
from keras_preempt.backend.tensorflow.collectives import Collectives


def test_each_gets_what_is_its_own_in_whatever_order_tensorflow_has_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gather(data: Any, members: int) -> Any:
        order = [0, 1, 10, 11, *range(2, 10)]
        own = data.view(np.int64)
        return tf.constant([own + each - 4 for each in order], tf.int64)  # It is worker 4 that asks.

    monkeypatch.setattr(collectives, "gather", gather)
    everyone = Collectives(4, 12, patience=60)
    given = everyone(np.array([1004, 1004], np.int64).view(np.uint8))
    assert [list(each.view(np.int64)) for each in given] == [[1000 + n, 1000 + n] for n in range(12)]


def test_a_worker_that_does_not_come_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(collectives, "gather", lambda data, members: [never.wait(60)])
    with pytest.raises(tf.errors.UnavailableError, match="Expected all 2 workers to exchange") as error:
        Collectives(0, 2, patience=0.05)(np.zeros(8, np.uint8))
    never.set()
    assert backend().errors.says_a_worker_is_gone(error.value)


def test_an_error_of_tensorflow_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(data: Any, members: int) -> Any:
        raise tf.errors.AbortedError(None, None, "by the test")

    monkeypatch.setattr(collectives, "gather", gather)
    with pytest.raises(tf.errors.AbortedError, match="by the test"):
        Collectives(0, 2, patience=60)(np.zeros(8, np.uint8))
