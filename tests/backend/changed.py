"""What a canary says when Keras or TensorFlow is not as the package takes it to be."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_preempt.backend import versions


def keras_changed(what: str) -> str:
    return f"{what} (Keras {keras.__version__} installed, {versions.NEWEST_KERAS} verified)"


def tensorflow_changed(what: str) -> str:
    verified = ", ".join(versions.VERIFIED_TENSORFLOW)
    return f"{what} (TensorFlow {tf.__version__} installed, {verified} verified)"
