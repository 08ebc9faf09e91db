"""A model described without TensorFlow, which Keras imports to describe any: for seconds, and 400 MB.

Keras looks whether a value of a model is one of TensorFlow's. Where the program has not imported TensorFlow, none is.

Verified with Keras 3.15.1; tests/backend/jax has a canary.
"""

from __future__ import annotations

import sys
from typing import Any

from keras_preempt.backend.keras.names import lazy_tensorflow


def described(model: Any) -> str:
    """Returns how Keras describes a model, as JSON; imports no TensorFlow."""
    lazy = lazy_tensorflow()
    if lazy is None or sys.modules.get("tensorflow") is not None or lazy._available is not None:
        return str(model.to_json())
    lazy._available = False
    try:
        return str(model.to_json())
    finally:
        lazy._available = None
