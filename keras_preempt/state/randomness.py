"""Python's and NumPy's global random state. Keras' own seeds are variables: see `model`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import plain
from keras_preempt.state.component import Component, RestoreMoment, StoredState


def capture(arrays: dict[str, Array]) -> dict[str, Any]:
    version, words, gauss = random.getstate()
    return {
        "python": plain.encode((version, np.array(words, np.uint64), gauss), arrays, "random/python"),
        "numpy": plain.encode(np.random.get_state(legacy=True), arrays, "random/numpy"),
    }


def restore(state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    try:
        version, words, gauss = plain.decode(state["python"], arrays)
        random.setstate((version, tuple(int(word) for word in words), gauss))
        np.random.set_state(plain.decode(state["numpy"], arrays))
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected the state of random generators. Received: {error!r}.") from error


class Randomness(Component):
    later = ("random/",)

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        return {"random": capture(values.local)}

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is not RestoreMoment.BEGIN:
            restore(saved.state["random"], saved.arrays)


def fingerprint() -> tuple[object, ...]:
    """Returns a value that changes as soon as anything is drawn from either generator."""
    name, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(words).tobytes(), *rest
