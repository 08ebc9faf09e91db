"""The global random state: Python's, NumPy's, and the backend's. Keras' own seeds are variables: see `model`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import plain
from keras_preempt.state.component import Component, RestoreMoment, StoredState

RandomStates = tuple[Any, Any, Mapping[str, Array] | None]
"""Python's state, NumPy's, and those of the backend's generators; None for the present one."""


def capture(arrays: dict[str, Array], states: RandomStates = (None, None, None)) -> dict[str, Any]:
    """Returns states as JSON data, with their arrays added to `arrays`; the present one in place of None."""
    python, of_numpy, of_backend = states
    version, words, gauss = python or random.getstate()
    now = of_numpy or np.random.get_state(legacy=True)
    other = backend().random_states() if of_backend is None else of_backend
    return {
        "python": plain.encode((version, np.array(words, np.uint64), gauss), arrays, "random/python"),
        "numpy": plain.encode(now, arrays, "random/numpy"),
        **({"backend": plain.encode(dict(other), arrays, "random/backend")} if other else {}),
    }


def restore(state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    try:
        version, words, gauss = plain.decode(state["python"], arrays)
        random.setstate((version, tuple(int(word) for word in words), gauss))
        np.random.set_state(plain.decode(state["numpy"], arrays))
        backend().restore_random_states(plain.decode(state.get("backend", {}), arrays))
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected the state of random generators. Received: {error!r}.") from error


class Randomness(Component):
    later = ("random/",)

    def __init__(self, feed: InputFeed) -> None:
        self._feed = feed

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        before = self._feed.random_before() if phase == "train" else None
        captured = capture(values.local, before or (None, None, None))
        if generators := self._feed.generators(pending=phase == "train"):
            captured["data"] = plain.encode(generators, values.local, "random/data")
        return {"random": captured}

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is not RestoreMoment.BEGIN:
            state = saved.state["random"]
            restore(state, saved.arrays)
            if "data" in state:
                self._feed.set_generators(plain.decode(state["data"], saved.arrays))


def fingerprint(*, of_backend: bool = True) -> tuple[object, ...]:
    """Returns a value that changes as soon as anything is drawn from one of these generators."""
    name, words, *rest = np.random.get_state(legacy=True)
    others = [state.tobytes() for state in backend().random_states().values()] if of_backend else []
    return random.getstate(), name, np.asarray(words).tobytes(), *rest, *others
