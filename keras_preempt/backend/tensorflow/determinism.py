"""Whether the GPUs of this process add numbers in the same order each time.

Verified with TensorFlow 2.16.1 to 2.21.0; a test in tests/backend/tensorflow/test_canaries.py sees the private name.
"""

from __future__ import annotations

import tensorflow as tf

from keras_preempt.backend.determinism import OF_TENSORFLOW
from keras_preempt.backend.versions import UnsupportedTensorFlow


def unordered_sums() -> str:
    """See `seam.Backend.unordered_sums`."""
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    return OF_TENSORFLOW.cure if has_gpu and not (OF_TENSORFLOW.is_set or is_deterministic()) else ""


def is_deterministic() -> bool:
    """Whether the program has called `tf.config.experimental.enable_op_determinism()`.

    Raises:
        UnsupportedTensorFlow: The installed TensorFlow keeps that elsewhere.
    """
    try:
        from tensorflow.python.framework import config

        return bool(config.is_op_determinism_enabled())
    except (ImportError, AttributeError) as error:
        raise UnsupportedTensorFlow("tensorflow.python.framework.config.is_op_determinism_enabled") from error
