"""What must be installed and set before anything of this package can train."""

from __future__ import annotations

from importlib.util import find_spec


def check() -> None:
    """Checks that TensorFlow is installed and that Keras runs on it.

    Raises:
        ImportError: One of them is not so; the message says what to install or to set.
    """
    if find_spec("tensorflow") is None:
        raise ImportError(
            "Expected TensorFlow to be installed. Received: none. Install it with "
            "`pip install 'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install 'keras-preempt[tpu]'`; "
            "the two exclude each other."
        )
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"Expected Keras to run on the TensorFlow backend. Received: {keras.backend.backend()!r}. Set the "
            "environment variable KERAS_BACKEND=tensorflow before Keras is imported, or the 'backend' in "
            "~/.keras/keras.json."
        )
