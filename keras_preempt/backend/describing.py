"""How Keras describes a model, without an import of TensorFlow for that."""

from __future__ import annotations

import sys
from typing import Any

from keras_preempt.backend.keras.names import lazy_tensorflow


def described(model: Any) -> str:
    """Returns the description of a model, as JSON.

    To describe a model, Keras checks for values of TensorFlow's, and imports it for that: seconds, and 400 MB. A
    program that has not imported TensorFlow has no such values.
    """
    lazy = lazy_tensorflow()
    if lazy is None or sys.modules.get("tensorflow") is not None or lazy._available is not None:
        return str(model.to_json())
    lazy._available = False
    try:
        return str(model.to_json())
    finally:
        lazy._available = None
