"""The arrays of which Keras makes batches, on TensorFlow and on JAX, with each option that makes a difference."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

SAMPLES, BATCH = 45, 7
X = np.arange(SAMPLES * 2).reshape(SAMPLES, 2).astype("float32")
Y = np.arange(SAMPLES) % 3
DATA: dict[str, Any] = {"x": X, "y": Y, "batch_size": BATCH}

OPTIONS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "in order": {"shuffle": False},
    "in batches": {"shuffle": "batch"},
    "class weights": {"shuffle": True, "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}},
    "sample weights": {"shuffle": True, "sample_weight": np.arange(SAMPLES)},
    "dictionary": {"shuffle": "batch", "x": {"a": X, "b": X[:, :1]}},
    "list without targets": {"shuffle": True, "x": [X, X + 1], "y": None},
    "whole batches": {"shuffle": True, "batch_size": 9},
    "one batch": {"shuffle": True, "batch_size": SAMPLES + 1},
}


def drawn(batches: Any) -> list[Any]:
    """Each batch as a list of its tensors' values."""
    return [
        [np.asarray(leaf).tolist() for leaf in keras.tree.flatten(batch) if leaf is not None]
        for batch in batches
    ]
