"""A model described without TensorFlow, which Keras imports to describe any: for seconds, and 400 MB.

Keras looks whether a value of a model is one of TensorFlow's. Where the program has not imported TensorFlow, none is.

Verified with Keras 3.15.1; tests/backend/jax has a canary.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def described(model: Any) -> str:
    """Returns how Keras describes a model, as JSON; imports no TensorFlow."""
    lazy = _lazy_tensorflow()
    if lazy is None or "tensorflow" in sys.modules or lazy._available is not None:
        return str(model.to_json())
    lazy._available = False
    try:
        return str(model.to_json())
    finally:
        lazy._available = None


def _lazy_tensorflow() -> Any:
    try:
        found = importlib.import_module("keras.src.utils.module_utils").tensorflow
    except (ImportError, AttributeError):
        return None  # Then TensorFlow is imported, which costs time and nothing else.
    return found if hasattr(type(found), "available") and "_available" in vars(found) else None
