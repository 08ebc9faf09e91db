"""The versions of Keras and its backends that this package was verified with."""

from __future__ import annotations

OLDEST_KERAS = "3.8.0"
"""Keras before 3.7 cannot begin an epoch midway; 3.7 cannot make a random seed under a strategy."""

NEWEST_KERAS = "3.15.1"
"""A newer one works as long as it has the private names of `backend.keras`."""

OLDEST_TENSORFLOW = "2.16.1"
"""The first that is installed with Keras 3."""

NEWEST_TENSORFLOW = "2.21.0"
"""A newer one works as long as it has the private names of `backend.tensorflow`."""

VERIFIED_TENSORFLOW = (OLDEST_TENSORFLOW, "2.17.1", NEWEST_TENSORFLOW)
"""All that were verified."""

OLDEST_JAX = "0.10.2"
"""The only one that was verified so far; an older one is told of and used."""

NEWEST_JAX = "0.10.2"
"""A newer one works as long as it has the private names of `backend.jax`."""

OLDEST_KERAS_ON_JAX = "3.15.0"
"""Before it, Keras was not verified on JAX."""


class UnsupportedTensorFlow(ImportError):
    """The installed TensorFlow lacks a private name that this package needs, or has changed it.

    Args:
        expected: What was expected of TensorFlow.
    """

    def __init__(self, expected: str) -> None:
        import tensorflow as tf  # Here, since what needs no TensorFlow works without it.

        super().__init__(
            f"Expected TensorFlow to have {expected}. Received: TensorFlow {tf.__version__}. keras-preempt was "
            f"verified on TensorFlow {', '.join(VERIFIED_TENSORFLOW)}: install one of these, or a newer keras-preempt."
        )
